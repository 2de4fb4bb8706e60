//! IP protocols by name.

use crate::failure::Failure;

pub const TCP: u32 = 6;
pub const UDP: u32 = 17;

/// Those that have names here.
const NAMES: [(&str, u32); 5] =
    [("tcp", TCP), ("udp", UDP), ("icmp", 1), ("icmpv6", 58), ("sctp", 132)];

/// The number of a protocol that has a name here.
pub fn named(word: &str) -> Option<u32> {
    NAMES.iter().find(|(name, _)| *name == word).map(|(_, number)| *number)
}

/// The number that the value of `--proto` means.
pub fn parse(word: &str) -> Result<u32, Failure> {
    let number = named(word).or_else(|| word.parse::<u8>().ok().map(u32::from));
    number.ok_or_else(|| {
        Failure::not_recognized(
            "proto",
            word,
            "tcp, udp, icmp, icmpv6, sctp or a number from 0 to 255",
        )
    })
}

/// The name of a protocol, or its number.
pub fn name(number: u32) -> String {
    let named = NAMES.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}
