//! How fast drops go on: over the time that the daemon looks back, or since the answer before.

use butterfly_api::proto::DropListRes;
use butterfly_api::proto::drop_list_res::{Drop, Place};
use std::collections::HashMap;

/// A place, by what tells it apart.
type Key<'a> = (i32, &'a str, u32);

fn key(place: &Place) -> Key<'_> {
    (place.kind.map_or(0, |kind| kind.value()), place.nic_id(), place.vni())
}

/// Rates of what one answer tells.
pub struct DropRates<'a> {
    /// The time they are about, in milliseconds.
    pub window: u64,
    /// Counts at its beginning, if the daemon is not to be asked.
    before: Option<HashMap<(Key<'a>, &'a str), u64>>,
}

impl<'a> DropRates<'a> {
    /// Returns the rates over the time that the daemon looks back.
    pub fn of_window(found: &DropListRes) -> DropRates<'a> {
        DropRates { window: found.window_ms(), before: None }
    }

    /// Returns the rates since an answer before. A daemon that was started anew in between has
    /// nothing to compare with.
    pub fn between(before: &'a DropListRes, found: &DropListRes) -> DropRates<'a> {
        match found.time_ms().checked_sub(before.time_ms()) {
            None | Some(0) => DropRates::of_window(found),
            Some(window) => {
                let counts = before
                    .place
                    .iter()
                    .flat_map(|place| place.drop.iter().map(move |drop| (place, drop)));
                let counts =
                    counts.map(|(place, drop)| ((key(place), drop.reason()), drop.count()));
                DropRates { window, before: Some(counts.collect()) }
            }
        }
    }

    /// Frames per second; `None` if that is not known.
    pub fn of(&self, place: &Place, drop: &Drop) -> Option<f64> {
        // Of what is gone, no rate is one.
        let recent = drop.recent?;
        let recent = match &self.before {
            None => recent,
            Some(before) => {
                let count = before.get(&(key(place), drop.reason())).copied().unwrap_or(0);
                // Fewer than before: another vnic of that name.
                drop.count().checked_sub(count).unwrap_or(drop.count())
            }
        };
        (self.window > 0).then(|| recent as f64 * 1000.0 / self.window as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_api::proto::drop_list_res::place::Kind;

    fn answer(
        time: u64,
        window: u64,
        kind: Kind,
        id: &str,
        count: u64,
        recent: Option<u64>,
    ) -> DropListRes {
        let drop =
            Drop { reason: Some("short".into()), count: Some(count), recent, ..Drop::default() };
        let place = Place {
            kind: Some(kind.into()),
            nic_id: Some(id.into()),
            drop: vec![drop],
            ..Place::default()
        };
        DropListRes {
            time_ms: Some(time),
            window_ms: Some(window),
            place: vec![place],
            ..DropListRes::default()
        }
    }

    fn rate(rates: &DropRates, found: &DropListRes) -> Option<f64> {
        rates.of(&found.place[0], &found.place[0].drop[0])
    }

    #[test]
    fn rates_are_of_the_window_first_and_then_of_what_came_since() {
        let one = answer(10_000, 5_000, Kind::NIC, "a", 100, Some(10));
        assert_eq!(rate(&DropRates::of_window(&one), &one), Some(2.0));
        let two = answer(12_000, 7_000, Kind::NIC, "a", 107, Some(17));
        assert_eq!(rate(&DropRates::between(&one, &two), &two), Some(3.5));
        // Another vnic, one of that name that was made anew, another kind of place.
        for (other, want) in [
            (answer(12_000, 1, Kind::NIC, "b", 6, Some(6)), 3.0),
            (answer(12_000, 1, Kind::NIC, "a", 4, Some(4)), 2.0),
            (answer(12_000, 1, Kind::NETWORK, "a", 8, Some(8)), 4.0),
        ] {
            assert_eq!(rate(&DropRates::between(&one, &other), &other), Some(want));
        }
    }

    #[test]
    fn where_nothing_is_known_there_is_no_rate() {
        let begun = answer(0, 0, Kind::NIC, "a", 1, Some(1));
        assert_eq!(rate(&DropRates::of_window(&begun), &begun), None);
        let gone = answer(9, 9, Kind::GONE, "", 1, None);
        assert_eq!(rate(&DropRates::between(&begun, &gone), &gone), None);
        // The daemon was started anew.
        let late = answer(10_000, 5_000, Kind::NIC, "a", 100, Some(10));
        let anew = answer(500, 500, Kind::NIC, "a", 3, Some(3));
        assert_eq!(rate(&DropRates::between(&late, &anew), &anew), Some(6.0));
    }
}
