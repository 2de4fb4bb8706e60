//! Limits of a vnic's traffic: their options, and how they are shown.

use crate::failure::Failure;
use crate::line::options::option;
use crate::line::reader::Arguments;
use butterfly_api::proto::{NicLimit, NicLimits};
use clap::Arg;
use protobuf::MessageField;
use serde_json::{Value, json};

/// Options of a way: bits, packets, bytes at once, packets at once.
type Names = [&'static str; 4];

const IN: Names = ["limit-in", "limit-in-packets", "limit-in-burst", "limit-in-packet-burst"];
const OUT: Names = ["limit-out", "limit-out-packets", "limit-out-burst", "limit-out-packet-burst"];

/// Letters behind a number, and what they stand for.
const LETTERS: [(char, u64); 4] =
    [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000), ('T', 1_000_000_000_000)];

/// Returns the options of both ways.
pub fn options() -> [Arg; 8] {
    let [bits, packets, burst, packet_burst] = IN;
    let [bits_out, packets_out, burst_out, packet_burst_out] = OUT;
    [
        option(bits, "BITS").help("most bits per second that the machine may send (500M, 1G; 0: no limit); more waits in its queue, and nothing is lost"),
        option(packets, "PACKETS").help("most packets per second that it may send (100k; 0: no limit)"),
        option(burst, "BYTES").help("bytes that may go at once (default: those of 10 ms); needs --limit-in"),
        option(packet_burst, "PACKETS").help("packets that may go at once (default: those of 10 ms); needs --limit-in-packets"),
        option(bits_out, "BITS").help("most bits per second that the machine gets (0: no limit); more is dropped as rate-limited"),
        option(packets_out, "PACKETS").help("most packets per second that it gets (0: no limit)"),
        option(burst_out, "BYTES").help("as --limit-in-burst; needs --limit-out"),
        option(packet_burst_out, "PACKETS").help("as --limit-in-packet-burst; needs --limit-out-packets"),
    ]
}

/// Reads the limits that the options name.
pub fn limits(arguments: &Arguments) -> Result<Option<NicLimits>, Failure> {
    let (from, to) = (limit(arguments, IN)?, limit(arguments, OUT)?);
    Ok((from.is_some() || to.is_some()).then(|| NicLimits {
        in_: from.into(),
        out: to.into(),
        ..NicLimits::default()
    }))
}

fn limit(arguments: &Arguments, names: Names) -> Result<Option<NicLimit>, Failure> {
    if !names.iter().any(|name| arguments.has(name)) {
        return Ok(None);
    }
    let [bits, packets, burst, packet_burst] = names;
    for (needing, needed) in [(burst, bits), (packet_burst, packets)] {
        if arguments.has(needing) && !arguments.has(needed) {
            return Err(Failure::usage(format!("--{needing} needs --{needed}")));
        }
    }
    let number = |name: &str| {
        arguments.value(name).map_or(Ok(None), |text| match amount(text) {
            Some(number) => Ok(Some(number)),
            None => Err(Failure::not_recognized(
                name,
                text,
                "a whole number, or one with k, M, G or T behind it, as 100k or 1.5G",
            )),
        })
    };
    Ok(Some(NicLimit {
        bits: number(bits)?,
        packets: number(packets)?,
        burst_bytes: number(burst)?,
        burst_packets: number(packet_burst)?,
        ..NicLimit::default()
    }))
}

/// Reads `1500`, `100k` or `1.5G`. The result is a whole number.
fn amount(text: &str) -> Option<u64> {
    let (digits, unit) = match LETTERS.iter().find(|(letter, _)| text.ends_with(*letter)) {
        Some((letter, unit)) => (text.strip_suffix(*letter)?, *unit),
        None => (text, 1),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) || digits.ends_with('.') {
        return None;
    }
    let scale = 10u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let part = if part.is_empty() { 0 } else { part.parse::<u64>().ok()? };
    let part = part.checked_mul(unit)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if part % scale == 0 { whole.checked_add(part / scale) } else { None }
}

/// Writes a number with a letter behind it, if that is shorter.
fn short(number: u64) -> String {
    match LETTERS
        .iter()
        .rev()
        .find(|(_, unit)| number >= *unit && number.is_multiple_of(unit / 1000))
    {
        Some((letter, unit)) if number.is_multiple_of(*unit) => {
            format!("{}{letter}", number / unit)
        }
        Some((letter, unit)) => {
            let part = format!("{:03}", number % unit / (unit / 1000));
            format!("{}.{}{letter}", number / unit, part.trim_end_matches('0'))
        }
        None => number.to_string(),
    }
}

/// Returns the limits of a vnic in words, each way by its name; none that is not limited.
pub fn words(limits: &NicLimits) -> Vec<(&'static str, String)> {
    let ways = [("in", &limits.in_), ("out", &limits.out)];
    let limited = ways.into_iter().filter_map(|(way, limit)| Some((way, limit.as_ref()?)));
    limited.map(|(way, limit)| (way, of_way(limit))).filter(|(_, text)| !text.is_empty()).collect()
}

fn of_way(limit: &NicLimit) -> String {
    let rate = |rate: u64, unit: &str, burst: u64, of_burst: &str| {
        let burst = match burst {
            0 => String::new(),
            burst => format!(" ({} {of_burst} at once)", short(burst)),
        };
        (rate > 0).then(|| format!("{} {unit}{burst}", short(rate)))
    };
    let both = [
        rate(limit.bits(), "bits/s", limit.burst_bytes(), "bytes"),
        rate(limit.packets(), "packets/s", limit.burst_packets(), "packets"),
    ];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns limits under the names of the protocol.
pub fn json_of(limits: Option<&NicLimits>) -> Value {
    let way = |limit: &MessageField<NicLimit>| {
        limit.as_ref().map(|limit| {
            json!({
                "bits": limit.bits(),
                "packets": limit.packets(),
                "burst_bytes": limit.burst_bytes(),
                "burst_packets": limit.burst_packets(),
            })
        })
    };
    limits.map_or(Value::Null, |limits| json!({ "in": way(&limits.in_), "out": way(&limits.out) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        for (text, number, again) in [
            ("0", 0, "0"),
            ("1500", 1500, "1.5k"),
            ("100k", 100_000, "100k"),
            ("1.5G", 1_500_000_000, "1.5G"),
            ("2.048M", 2_048_000, "2.048M"),
            ("1234567", 1_234_567, "1234.567k"),
            ("18T", 18_000_000_000_000, "18T"),
            ("999", 999, "999"),
        ] {
            assert_eq!(amount(text), Some(number), "{text}");
            assert_eq!(short(number), again);
            assert_eq!(amount(&short(number)), Some(number));
        }
        for text in
            ["", "k", "1.G", ".5G", "-1", "1g", "1 G", "0x10", "1.0001k", "20000000T", "1e9", "+5"]
        {
            assert_eq!(amount(text), None, "{text}");
        }
    }
}
