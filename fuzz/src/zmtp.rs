//! A connection to the API, from its greeting on: any bytes in any pieces, with room given or kept
//! back, replies read or not.

use crate::input::Input;
use butterfly_api::zmtp::{ALLOWANCE, Connection, LONGEST_COMMAND, LONGEST_ROUTE};

/// A good handshake, so that most inputs get past it.
const HANDSHAKE: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\x06\x05READY";

/// The first byte says whether it begins with a good handshake; then each piece has a byte before
/// it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut connection = Connection::new();
    if input.u8() % 2 == 0 {
        assert_eq!(connection.feed(HANDSHAKE), Ok(HANDSHAKE.len()), "a good handshake is taken");
        assert!(connection.is_open());
    }
    let mut asks = None;
    while let Some(what) = input.next() {
        match what {
            0..0xe0 => {
                let mut piece = input.bytes(usize::from(what));
                loop {
                    let Ok(taken) = connection.feed(piece) else { return };
                    piece = &piece[taken..];
                    if taken == 0 || piece.is_empty() {
                        break;
                    }
                }
                // What is not taken is lost here: any bytes may follow any others.
                assert!(piece.is_empty() || !connection.is_ready(), "it stops for a reason");
            }
            0xe0..0xe8 => connection.give_room(),
            0xe8..0xf0 if asks.is_none() && connection.unsent() == 0 => {
                asks = connection.take_request();
                if let Some(request) = &asks {
                    assert!(request.route.len() <= LONGEST_ROUTE);
                    assert!(
                        request.room > 0 || request.body.len() <= ALLOWANCE,
                        "a long one has room"
                    );
                }
            }
            0xf0..0xf8 => {
                if let Some(request) = asks.take() {
                    let reply = request.body.repeat(usize::from(what & 7));
                    connection.reply(&request.route, reply);
                }
            }
            _ => {
                let length = connection.output().len().min(usize::from(input.u8()));
                connection.sent(length);
            }
        }
        // Without replies, what is to be sent is a greeting, metadata, and heartbeats that are not
        // gathered.
        let replies = 8 * (ALLOWANCE + LONGEST_COMMAND) + data.len() * 8;
        assert!(connection.unsent() <= replies, "{} bytes are to be sent", connection.unsent());
    }
}
