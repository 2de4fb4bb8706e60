//! `butterfly drops` for people.

use super::rates::DropRates;
use super::reasons::Reasons;
use crate::text::table::{counted, duration, safe};
use butterfly_api::proto::DropListRes;
use butterfly_api::proto::drop_list_res::{Drop, Place, place::Kind};
use std::fmt::Write;

/// The page; of one vnic, or of the whole host.
pub fn page(nic: Option<&str>, found: &DropListRes, rates: &DropRates) -> String {
    let of = nic.map_or("the whole host".to_owned(), safe);
    if found.place.is_empty() {
        return format!("drops of {of}: none\n");
    }
    let reasons = Reasons::of(found);
    let mut page = format!("drops of {of}: {}", counted(found.total(), "frame"));
    let drops = found.place.iter().flat_map(|place| &place.drop);
    let harmless: u64 = drops.filter(|drop| reasons.is_harmless(drop)).map(Drop::count).sum();
    if harmless > 0 {
        let _ = write!(page, ", {harmless} of them harmless");
    }
    // Writing to a string cannot fail.
    let _ = match rates.window {
        0 => writeln!(page),
        window => writeln!(page, "; rates are those of the last {}", time(window)),
    };
    let rows: Vec<[String; 4]> = found
        .place
        .iter()
        .flat_map(|place| place.drop.iter().map(|drop| row(place, drop, rates)))
        .collect();
    let widths: [usize; 4] = std::array::from_fn(|at| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    });
    let mut rows = rows.iter();
    for place in &found.place {
        let _ = writeln!(page, "\n{}", title(place));
        for drop in &place.drop {
            let Some([reason, count, rate, last]) = rows.next() else { continue };
            let [names, counts, rates, _] = widths;
            let line = format!("  {reason:<names$}  {count:>counts$}  {rate:>rates$}  {last}");
            let _ = writeln!(page, "{}", line.trim_end());
            advice(&mut page, &reasons, place, drop);
        }
    }
    if found.left_out() > 0 {
        let _ = writeln!(
            page,
            "\n{} more vnics or networks dropped something: ask for one",
            found.left_out()
        );
    }
    page
}

/// Writes the lines that follow a row.
fn advice(page: &mut String, reasons: &Reasons, place: &Place, drop: &Drop) {
    let mut line = |name: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(page, "    {name:<6}  {}", safe(text));
        }
    };
    let reason = reasons.get(drop);
    line("packet", drop.last_packet());
    if let Some(reason) = reason.filter(|reason| reason.harmless()) {
        return line("means", &format!("Harmless. {}", reason.description()));
    }
    if let Some(reason) = reason {
        line("means", reason.description());
        line("do", &remedy(drop.remedy.as_deref().unwrap_or(reason.remedy()), place));
    }
}

/// The kind of a place, if this program knows it.
pub fn kind(place: &Place) -> Option<Kind> {
    place.kind.and_then(|kind| kind.enum_value().ok())
}

fn title(place: &Place) -> String {
    match kind(place) {
        Some(Kind::NIC) => format!("{} (vni {})", safe(place.nic_id()), place.vni()),
        Some(Kind::NETWORK) => format!("network {}, from and to other hosts", place.vni()),
        Some(Kind::UPLINK) => "uplink".into(),
        Some(Kind::GONE) => "vnics and networks that are gone".into(),
        None => "others".into(),
    }
}

fn row(place: &Place, drop: &Drop, rates: &DropRates) -> [String; 4] {
    let last = match kind(place) {
        Some(Kind::GONE) if drop.last_ms.is_none() => String::new(),
        _ => last(drop),
    };
    let rate = rates.of(place, drop).map_or_else(String::new, |rate| match rate {
        0.0 => "0 per s".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1} per s"),
        rate => format!("{rate:.0} per s"),
    });
    // One has the room of several: numbers stand below each other.
    [
        safe(drop.reason()),
        format!(
            "{:<w$}",
            counted(drop.count(), "frame"),
            w = drop.count().to_string().len() + " frames".len()
        ),
        rate,
        last,
    ]
}

/// Returns the age of the last drop.
pub fn last(drop: &Drop) -> String {
    drop.last_ms.map_or("last: not known".into(), |age| format!("last {} ago", time(age)))
}

/// A time in milliseconds: in tenths of a second, as long as that says something.
fn time(milliseconds: u64) -> String {
    match milliseconds {
        0..60_000 => format!("{}.{} s", milliseconds / 1000, milliseconds / 100 % 10),
        _ => duration(milliseconds / 1000),
    }
}

/// Returns the remedy, with the names of this place where its commands say NIC and VNI.
pub fn remedy(text: &str, place: &Place) -> String {
    let put_in = |command: &str| {
        let words = command.split(' ').map(|word| match (word, &place.nic_id, place.vni) {
            ("NIC", Some(id), _) => id.clone(),
            ("VNI", _, Some(vni)) => vni.to_string(),
            (word, ..) => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    // Every second part is between backticks.
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { put_in(part) } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_into_commands_only() {
        let place = Place { nic_id: Some("vm-1".into()), vni: Some(42), ..Place::default() };
        let text = "see the NIC's VNI: `butterfly nic show NIC`, `butterfly fdb VNI`, or NICs";
        let want = "see the NIC's VNI: `butterfly nic show vm-1`, `butterfly fdb 42`, or NICs";
        assert_eq!(remedy(text, &place), want);
        assert_eq!(remedy(text, &Place::default()), text);
        assert_eq!(remedy("`a NIC", &place), "`a vm-1");
    }

    #[test]
    fn times() {
        for (milliseconds, want) in
            [(0, "0.0 s"), (7_349, "7.3 s"), (59_999, "59.9 s"), (61_000, "1 min 1 s")]
        {
            assert_eq!(time(milliseconds), want);
        }
    }
}
