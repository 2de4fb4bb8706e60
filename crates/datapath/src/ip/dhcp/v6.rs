//! DHCP over IPv6: RFC 8415, section 8 for messages, 21 for options.

use butterfly_packet::{Mac, be16, be32};

use crate::ip::dhcp::Message;

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const ELAPSED: u16 = 8;

/// Bytes of a DHCP unique identifier (RFC 8415, 11.1).
const DUID: std::ops::RangeInclusive<usize> = 3..=130;

/// Depth of options in options: a lease in an association, its status in that.
const DEPTH: usize = 3;

/// Returns the number of bytes before the options that an option holds; `None` if it holds none.
const fn container(code: u16) -> Option<usize> {
    match code {
        // Associations of addresses and prefixes; of temporary addresses.
        3 | 25 => Some(12),
        4 => Some(4),
        // Address, prefix.
        5 => Some(24),
        26 => Some(25),
        _ => None,
    }
}

/// Returns whether an option may have this length.
fn len_fits(code: u16, len: usize) -> bool {
    match code {
        CLIENT_ID | SERVER_ID => DUID.contains(&len),
        // Wanted options.
        6 => len.is_multiple_of(2),
        // Preference, elapsed time, server's address, status.
        7 => len == 1,
        ELAPSED => len == 2,
        12 => len == 16,
        13 => len >= 2,
        // Rapid commit, reconfigure accepted.
        14 | 20 => len == 0,
        _ => true,
    }
}

/// Walks options to the last byte. Returns a bit for each code below 64 at the outer level.
fn walk(mut options: &[u8], depth: usize) -> Option<u64> {
    let mut came = 0u64;
    while !options.is_empty() {
        let (code, len) = (be16(options, 0)?, usize::from(be16(options, 2)?));
        let (value, rest) = options.get(4..)?.split_at_checked(len)?;
        let bit = 1u64.checked_shl(code.into()).unwrap_or(0);
        let once = matches!(code, CLIENT_ID | SERVER_ID | 6 | 7 | ELAPSED | 12 | 14 | 20);
        if !len_fits(code, len) || once && came & bit != 0 {
            return None;
        }
        came |= bit;
        if let Some(fixed) = container(code) {
            walk(value.get(fixed..)?, depth.checked_sub(1)?)?;
        }
        options = rest;
    }
    Some(came)
}

/// Reads a message between a client and a server. `None` if it is malformed for this direction.
pub(super) fn read(bytes: &[u8], request: bool) -> Option<Message> {
    let word = be32(bytes, 0)?;
    let came = walk(bytes.get(4..)?, DEPTH)?;
    let has = |code: u16| came & 1 << code != 0;
    let fits = match (request, word >> 24) {
        // Solicit, confirm, rebind: to any server (16.2, 16.5, 16.7).
        (true, 1 | 4 | 6) => has(CLIENT_ID) && !has(SERVER_ID),
        // Request, renew, release, decline: to one (16.4, 16.6, 16.8, 16.9).
        (true, 3 | 5 | 8 | 9) => has(CLIENT_ID) && has(SERVER_ID),
        // Information-request.
        (true, 11) => true,
        // Advertise (16.3), and reply, which has no client identifier if the request had none
        // (16.10).
        (false, 2) => has(CLIENT_ID) && has(SERVER_ID),
        (false, 7) => has(SERVER_ID),
        // A reconfigure answers nothing.
        _ => false,
    };
    fits.then_some(Message {
        transaction: word & 0xff_ffff,
        mac: Mac::ZERO,
        leases: [0, 0],
        server: 0,
        given: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes(), &(value.len() as u16).to_be_bytes(), value].concat()
    }

    fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
        [&[kind, 1, 2, 3][..], &options.concat()].concat()
    }

    const DUID_LL: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 9];

    fn client() -> Vec<u8> {
        option(1, &DUID_LL)
    }

    fn server() -> Vec<u8> {
        option(2, &DUID_LL)
    }

    #[test]
    fn a_solicitation_and_its_answer() {
        let lease = [&[0; 24][..], &option(13, &[0, 0, b'o', b'k'])].concat();
        let association = [&[0; 12][..], &option(5, &lease)].concat();
        let solicit = message(
            1,
            &[
                client(),
                option(6, &[0, 23, 0, 24]),
                option(8, &[0, 0]),
                option(3, &[0; 12]),
                option(14, &[]),
            ],
        );
        let found = Message {
            transaction: 0x01_0203,
            mac: Mac::ZERO,
            leases: [0, 0],
            server: 0,
            given: false,
        };
        assert_eq!(read(&solicit, true), Some(found));
        assert_eq!(
            read(&message(7, &[client(), server(), option(3, &association)]), false),
            Some(found)
        );
        assert_eq!((read(&solicit, false), read(&message(7, &[server()]), true)), (None, None));
    }

    #[test]
    fn kinds_have_the_identifiers_they_need() {
        let kinds = |request, options: &[Vec<u8>]| {
            (0..=255u8)
                .filter(|kind| read(&message(*kind, options), request).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (kinds(true, &[client()]), kinds(false, &[client()])),
            (vec![1, 4, 6, 11], vec![])
        );
        assert_eq!(
            (kinds(true, &[client(), server()]), kinds(false, &[client(), server()])),
            (vec![3, 5, 8, 9, 11], vec![2, 7])
        );
        assert_eq!((kinds(true, &[]), kinds(false, &[server()])), (vec![11], vec![7]));
    }

    #[test]
    fn options_are_whole_to_the_last() {
        let nested = |depth: usize| {
            (0..depth).fold(Vec::new(), |inner, _| option(4, &[&[0; 4][..], &inner].concat()))
        };
        for (options, why) in [
            (vec![client(), vec![0]], "a byte behind the last"),
            (vec![client(), vec![0, 8, 0]], "half a length"),
            (vec![client(), vec![0, 8, 0, 2, 0]], "cut off"),
            (vec![client(), client()], "two identifiers"),
            (vec![option(1, &[0, 1])], "identifier of two bytes"),
            (vec![option(1, &[0; 131])], "identifier of 131 bytes"),
            (vec![client(), option(8, &[0])], "half a time"),
            (vec![client(), option(6, &[0, 23, 0])], "half a wanted option"),
            (vec![client(), option(3, &[0; 11])], "association without its times"),
            (vec![client(), option(3, &[0; 13])], "association with a byte behind"),
            (
                vec![client(), option(3, &[&[0; 12][..], &option(5, &[0; 23])].concat())],
                "half an address",
            ),
            (vec![client(), nested(4)], "too deep"),
        ] {
            assert_eq!(read(&message(1, &options), true), None, "{why}");
        }
        assert!(
            read(
                &message(
                    1,
                    &[
                        client(),
                        nested(3),
                        option(16, &[0; 4]),
                        option(3, &[0; 12]),
                        option(3, &[0; 12])
                    ]
                ),
                true
            )
            .is_some()
        );
        assert_eq!((read(&[1, 2, 3], true), read(&[], true)), (None, None));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), request: bool) {
            let _ = read(&bytes, request);
        }

        /// No byte of a well-formed message can be cut off or added.
        #[test]
        fn every_byte_is_of_an_option(extra in prop::collection::vec(any::<u8>(), 1..4), cut in 1usize..14) {
            let whole = message(1, &[option(8, &[0, 0]), client()]);
            prop_assert!(read(&whole, true).is_some());
            prop_assert!(read(&[&whole[..], &extra].concat(), true).is_none());
            prop_assert!(read(&whole[..whole.len() - cut], true).is_none());
        }
    }

    #[test]
    fn options_have_their_lengths() {
        for code in 0..=130u16 {
            let fits =
                |len: usize| read(&message(11, &[option(code, &vec![0; len])]), true).is_some();
            let lengths: Vec<usize> = (0..=140).filter(|len| fits(*len)).collect();
            // Options in options: of four zeros each here.
            let holds = |fixed: usize| (fixed..=140).step_by(4).collect();
            let expected: Vec<usize> = match code {
                1 | 2 => (3..=130).collect(),
                3 | 25 => holds(12),
                4 => holds(4),
                5 => holds(24),
                26 => holds(25),
                6 => (0..=140).step_by(2).collect(),
                7 => vec![1],
                8 => vec![2],
                12 => vec![16],
                13 => (2..=140).collect(),
                14 | 20 => vec![0],
                _ => (0..=140).collect(),
            };
            assert_eq!(lengths, expected, "{code}");
            let len = expected.iter().copied().find(|len| *len > 2).unwrap_or(expected[0]);
            let twice = [option(code, &vec![0; len]), option(code, &vec![0; len])];
            assert_eq!(
                read(&message(11, &twice), true).is_some(),
                !matches!(code, 1 | 2 | 6 | 7 | 8 | 12 | 14 | 20),
                "two of {code}"
            );
        }
    }

    /// An option within another option does not count as one of the message.
    #[test]
    fn identifiers_are_the_message_s_own() {
        let within = option(3, &[&[0; 12][..], &client()].concat());
        assert_eq!(read(&message(1, std::slice::from_ref(&within)), true), None);
        assert!(read(&message(1, &[within, client()]), true).is_some());
        let whole = message(11, &[]);
        assert_eq!(read(&whole, true).map(|message| message.transaction), Some(0x01_0203));
        assert!((0..4).all(|len| read(&whole[..len], true).is_none()));
    }
}
