//! DHCP over IPv4: RFC 2131; options as in RFC 2132, long ones as in RFC 3396.

use butterfly_packet::{Mac, be32};

use crate::ip::dhcp::Message;

/// Parts of the fixed header (RFC 2131, figure 1).
const CIADDR: usize = 12;
const YIADDR: usize = 16;
const GIADDR: usize = 24;
const CHADDR: usize = 28;
const SNAME: usize = 44;
const FILE: usize = 108;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;
/// Section 3.
const MAGIC: u32 = 0x6382_5363;

const PAD: u8 = 0;
const OVERLOAD: u8 = 52;
const KIND: u8 = 53;
const SERVER: u8 = 54;
const END: u8 = 255;

/// Kinds of messages (RFC 2132, 9.6).
const OFFER: u8 = 2;
const ACK: u8 = 5;

/// Returns the length of options with a fixed length, which may come only once.
const fn fixed_len(code: u8) -> Option<usize> {
    match code {
        // Overload, kind.
        OVERLOAD | KIND => Some(1),
        // Longest message.
        57 => Some(2),
        // Mask, wanted address, lease time, server, renewal and rebinding time.
        1 | 50 | 51 | SERVER | 58 | 59 => Some(4),
        _ => None,
    }
}

/// Contents of options.
#[derive(Default)]
struct Options {
    /// A bit for each code of [`fixed_len`] that came.
    came: u64,
    kind: u8,
    overload: u8,
    server: u32,
}

impl Options {
    /// Reads one field of options. They follow each other to an end option, behind which is
    /// nothing.
    fn read(&mut self, mut field: &[u8]) -> Option<()> {
        loop {
            let (code, rest) = field.split_first()?;
            match *code {
                PAD => field = rest,
                END => return rest.iter().all(|byte| *byte == PAD).then_some(()),
                code => {
                    let (len, rest) = rest.split_first()?;
                    let (value, rest) = rest.split_at_checked(usize::from(*len))?;
                    self.option(code, value)?;
                    field = rest;
                }
            }
        }
    }

    fn option(&mut self, code: u8, value: &[u8]) -> Option<()> {
        let Some(len) = fixed_len(code) else { return Some(()) };
        let bit = 1 << code;
        if value.len() != len || self.came & bit != 0 {
            return None;
        }
        self.came |= bit;
        match (code, value) {
            (KIND, [kind]) => self.kind = *kind,
            (OVERLOAD, [fields]) if matches!(fields, 1..=3) => self.overload = *fields,
            (OVERLOAD, _) => return None,
            (SERVER, value) => self.server = be32(value, 0)?,
            _ => {}
        }
        Some(())
    }
}

/// Reads a message between a client on Ethernet and a server. `None` if it is malformed for this
/// direction.
pub(super) fn read(bytes: &[u8], request: bool) -> Option<Message> {
    let &[op, htype, hlen, hops] = bytes.first_chunk()?;
    if op != if request { 1 } else { 2 } || (htype, hlen) != (1, 6) || be32(bytes, COOKIE)? != MAGIC
    {
        return None;
    }
    let &mac = bytes.get(CHADDR..)?.first_chunk()?;
    // Zeros follow the six bytes of the address.
    if bytes.get(CHADDR + 6..SNAME)?.iter().any(|byte| *byte != 0) {
        return None;
    }
    let mut options = Options::default();
    options.read(bytes.get(OPTIONS..)?)?;
    let overload = options.overload;
    // The file first (RFC 2131, 4.1). An overload in an overloaded field is a second one.
    if overload & 1 != 0 {
        options.read(bytes.get(FILE..COOKIE)?)?;
    }
    if overload & 2 != 0 {
        options.read(bytes.get(SNAME..FILE)?)?;
    }
    if options.overload != overload {
        return None;
    }
    let [ciaddr, yiaddr, giaddr] =
        [be32(bytes, CIADDR)?, be32(bytes, YIADDR)?, be32(bytes, GIADDR)?];
    let fits = match (request, options.kind) {
        // Discover, request, decline, release, inform: a client's own, which no relay has touched.
        (true, 1 | 3 | 4 | 7 | 8) => hops == 0 && giaddr == 0 && yiaddr == 0,
        // Offer, acknowledgement, refusal.
        (false, OFFER | ACK | 6) => true,
        _ => false,
    };
    let gives = !request && matches!(options.kind, OFFER | ACK);
    fits.then_some(Message {
        transaction: be32(bytes, 4)?,
        mac: Mac(mac),
        leases: [yiaddr, ciaddr],
        server: if gives { options.server } else { 0 },
        given: options.kind == ACK && !request,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    /// A message with these options behind the fixed part.
    pub fn message(op: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![op, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef];
        bytes.resize(CHADDR, 0);
        bytes.extend(MAC.0);
        bytes.resize(COOKIE, 0);
        bytes.extend(MAGIC.to_be_bytes());
        bytes.extend(options);
        bytes
    }

    /// Returns the first message of a client.
    pub fn discover() -> Vec<u8> {
        let mut bytes =
            message(1, &[53, 1, 1, 61, 7, 1, 2, 0, 0, 0, 0, 9, 57, 2, 5, 220, 55, 3, 1, 3, 6, 255]);
        bytes.resize(300, 0);
        bytes
    }

    fn offer() -> Vec<u8> {
        let mut bytes = message(
            2,
            &[53, 1, 2, 54, 4, 10, 0, 0, 3, 51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0, 255],
        );
        bytes[YIADDR..YIADDR + 4].copy_from_slice(&[10, 0, 0, 2]);
        bytes
    }

    #[test]
    fn a_request_and_its_reply() {
        let asked =
            Message { transaction: 0xdead_beef, mac: MAC, leases: [0, 0], server: 0, given: false };
        assert_eq!(read(&discover(), true), Some(asked));
        assert_eq!(
            read(&offer(), false),
            Some(Message { leases: [0x0a00_0002, 0], server: 0x0a00_0003, ..asked })
        );
        assert_eq!((read(&discover(), false), read(&offer(), true)), (None, None));
    }

    #[test]
    fn the_fixed_part_is_that_of_a_client_on_ethernet() {
        for (at, value) in [
            (0, 2),
            (0, 0),
            (1, 6),
            (2, 0),
            (2, 16),
            (3, 1),
            (16, 9),
            (24, 9),
            (34, 1),
            (43, 1),
            (236, 0),
            (239, 0),
        ] {
            let mut bytes = discover();
            bytes[at] = value;
            assert_eq!(read(&bytes, true), None, "byte {at} = {value}");
        }
        // Fields that a client may fill in.
        for at in [8, 10, 12, 20, 44, 108, 235] {
            let mut bytes = discover();
            bytes[at] = 1;
            assert!(read(&bytes, true).is_some(), "byte {at}");
        }
    }

    #[test]
    fn kinds_go_their_way() {
        let kinds = |op, request| {
            (0..=255u8)
                .filter(|kind| read(&message(op, &[53, 1, *kind, 255]), request).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!((kinds(1, true), kinds(2, false)), (vec![1, 3, 4, 7, 8], vec![2, 5, 6]));
        // A refusal names a server, too; it gives no lease to renew there.
        assert_eq!(
            read(&message(2, &[53, 1, 6, 54, 4, 1, 2, 3, 4, 255]), false)
                .map(|message| message.server),
            Some(0)
        );
    }

    #[test]
    fn options_are_whole_to_the_last() {
        for (options, why) in [
            (&[255][..], "no kind"),
            (&[53, 1, 1], "no end"),
            (&[53, 1, 1, 61], "no length"),
            (&[53, 1, 1, 61, 2, 1], "cut off"),
            (&[53, 1, 1, 61, 2, 1, 1], "cut off before the end"),
            (&[53, 2, 1, 1, 255], "kind of two bytes"),
            (&[53, 1, 1, 53, 1, 1, 255], "two kinds"),
            (&[53, 1, 1, 54, 3, 1, 1, 1, 255], "server of three bytes"),
            (&[53, 1, 1, 54, 4, 1, 1, 1, 1, 54, 4, 1, 1, 1, 1, 255], "two servers"),
            (&[53, 1, 1, 57, 1, 1, 255], "longest message of one byte"),
            (&[53, 1, 1, 255, 0, 0, 7], "something behind the end"),
            (&[53, 1, 1, 52, 1, 0, 255], "overloads nothing"),
            (&[53, 1, 1, 52, 1, 4, 255], "overloads what there is not"),
        ] {
            assert_eq!(read(&message(1, options), true), None, "{why}");
        }
        // RFC 3396: an option in parts; pads between; vendor's own.
        for options in [
            &[0, 53, 1, 1, 0, 0, 43, 1, 1, 43, 1, 2, 255, 0, 0][..],
            &[53, 1, 1, 224, 0, 255],
            &[53, 1, 8, 255],
        ] {
            assert!(read(&message(1, options), true).is_some(), "{options:?}");
        }
    }

    /// RFC 3396 and RFC 2132, 9.3.
    #[test]
    fn overloaded_fields_have_options() {
        let overloaded = |which: u8, file: &[u8], sname: &[u8]| {
            let mut bytes = message(2, &[52, 1, which, 255]);
            bytes[FILE..FILE + file.len()].copy_from_slice(file);
            bytes[SNAME..SNAME + sname.len()].copy_from_slice(sname);
            read(&bytes, false)
        };
        assert!(overloaded(1, &[53, 1, 2, 255], b"server").is_some());
        assert!(overloaded(2, b"file", &[53, 1, 2, 255]).is_some());
        assert!(
            overloaded(3, &[53, 1, 2, 255], &[54, 4, 1, 2, 3, 4, 255])
                .is_some_and(|message| message.server == 0x0102_0304)
        );
        for (which, file, sname) in [
            (1, &b"file"[..], &[53, 1, 2, 255][..]),
            (3, &[53, 1, 2, 255], b"server"),
            (3, &[53, 1, 2, 255], &[53, 1, 2, 255]),
            (1, &[53, 1, 2, 52, 1, 3, 255], &[]),
            (1, &[53, 1, 2, 255, 9], &[]),
        ] {
            assert_eq!(overloaded(which, file, sname), None, "{which} {file:?} {sname:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), request: bool) {
            let _ = read(&bytes, request);
        }

        /// Options are understood as another reader does: one that collects them in a list first.
        #[test]
        fn agrees_with_a_simple_reader(
            options in prop::collection::vec(prop_oneof![
                (prop::sample::select(vec![0u8, 1, 12, 43, 50, 52, 53, 54, 57, 61, 255]), prop::collection::vec(any::<u8>(), 0..6)),
                Just((53u8, vec![2u8])),
                Just((54u8, vec![10u8, 0, 0, 3])),
            ], 0..8),
            end: bool,
            cut in 0usize..4,
        ) {
            let mut bytes = Vec::new();
            for (code, value) in &options {
                bytes.push(*code);
                if !matches!(code, 0 | 255) {
                    bytes.push(value.len() as u8);
                    bytes.extend(value);
                }
            }
            if end { bytes.push(255); }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let list = simple(&bytes);
            let expected = list.is_some_and(|list| {
                let of = |code: u8| list.iter().filter(|(other, _)| *other == code).map(|(_, value)| value.clone()).collect::<Vec<_>>();
                let lengths = [(1, 4), (50, 4), (53, 1), (54, 4), (57, 2)];
                let sound = lengths.iter().all(|(code, len)| of(*code).len() <= 1 && of(*code).iter().all(|value| value.len() == *len));
                sound && of(52).is_empty() && matches!(of(53)[..], [ref kind] if [2, 5, 6].contains(&kind[0]))
            });
            let message = read(&message(2, &bytes), false);
            // Overloads have their own test.
            if !bytes.contains(&52) {
                prop_assert_eq!(message.is_some(), expected, "{:?}", bytes);
            }
        }
    }

    fn simple(bytes: &[u8]) -> Option<Vec<(u8, Vec<u8>)>> {
        let (mut list, mut at) = (Vec::new(), 0);
        loop {
            match *bytes.get(at)? {
                0 => at += 1,
                255 => return bytes[at + 1..].iter().all(|byte| *byte == 0).then_some(list),
                code => {
                    let len = usize::from(*bytes.get(at + 1)?);
                    list.push((code, bytes.get(at + 2..at + 2 + len)?.to_vec()));
                    at += 2 + len;
                }
            }
        }
    }

    /// Options of a fixed length have it, and come once; all others as they like.
    #[test]
    fn options_have_their_lengths() {
        for code in 2..=254u8 {
            let lengths = |request: bool| {
                let of = |len: u8| {
                    [
                        &[
                            if code == 53 { 12 } else { 53 },
                            1,
                            if request { 1 } else { 5 },
                            code,
                            len,
                        ][..],
                        &vec![1; len.into()],
                        &[255],
                    ]
                    .concat()
                };
                (0..=9u8)
                    .filter(|len| {
                        read(&message(if request { 1 } else { 2 }, &of(*len)), request).is_some()
                    })
                    .collect::<Vec<_>>()
            };
            let expected: Vec<u8> = match code {
                // An overload needs a field that ends.
                52 => vec![],
                53 => vec![1],
                57 => vec![2],
                50 | 51 | 54 | 58 | 59 => vec![4],
                _ => (0..=9).collect(),
            };
            assert_eq!(lengths(true), expected, "{code}");
            let twice = [53, 1, 1, code, 4, 1, 1, 1, 1, code, 4, 1, 1, 1, 1, 255];
            assert_eq!(
                read(&message(1, &twice), true).is_some(),
                !matches!(code, 50..=54 | 57..=59),
                "two of {code}"
            );
        }
        assert!(read(&message(2, &[53, 1, 5, 1, 3, 255, 255, 255, 255]), false).is_none());
    }

    #[test]
    fn an_answer_says_what_it_gives() {
        let of = |kind: u8| {
            let mut bytes = message(2, &[53, 1, kind, 54, 4, 10, 0, 0, 3, 255]);
            bytes[CIADDR..CIADDR + 4].copy_from_slice(&[1, 2, 3, 4]);
            bytes[YIADDR..YIADDR + 4].copy_from_slice(&[5, 6, 7, 8]);
            // Relays and hops are a server's business, on the way back too.
            bytes[3] = 9;
            bytes[GIADDR] = 10;
            read(&bytes, false).map(|message| (message.leases, message.server, message.given))
        };
        let leases = [0x0506_0708, 0x0102_0304];
        assert_eq!(of(2), Some((leases, 0x0a00_0003, false)));
        assert_eq!(of(5), Some((leases, 0x0a00_0003, true)));
        assert_eq!(of(6), Some((leases, 0, false)));
        // A client's message that names a server gives no lease.
        let asked = read(&message(1, &[53, 1, 3, 54, 4, 10, 0, 0, 3, 255]), true).unwrap();
        assert_eq!((asked.server, asked.given), (0, false));
    }

    #[test]
    fn nothing_shorter_than_the_fixed_part() {
        let whole = message(1, &[53, 1, 1, 255]);
        assert!(read(&whole, true).is_some());
        assert!((0..whole.len()).all(|len| read(&whole[..len], true).is_none()));
    }
}
