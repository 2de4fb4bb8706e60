//! Balance: which rings are to move so that workers have equal loads.
//!
//! A worker's load is the part of time in which it moved frames. Who is busier than another one by
//! more than [`UNEVEN`] in two looks in a row has its rings weighed, and gives up those that bring
//! the two together. A worker with little to do gives up nothing: at rest one worker is cheaper
//! than two, as only one has to wake up.

use std::collections::HashMap;

use crate::engine::place::RingPlace;

/// Difference of two workers' loads, as a part of their mean, from which on rings move.
const UNEVEN: f64 = 0.2;
/// Load below which a worker gives up nothing.
const REST: f64 = 0.2;
/// Load of a ring that is not worth a move.
const LEAST: f64 = 0.002;
/// Part of a difference that the move of a ring has to take away that has more than half of it.
const WORTH: f64 = 0.1;
/// Most rings that move at once.
const MOST: usize = 64;
/// Looks for which a ring stays where it was moved to.
const STAYS: u64 = 20;

/// Knowledge of workers from one look to the next.
#[derive(Default)]
pub(crate) struct Balance {
    looks: u64,
    busy: Vec<u64>,
    /// By worker; `None` until it is known.
    loads: Vec<Option<f64>>,
    uneven: u32,
    moved: HashMap<RingPlace, u64>,
}

impl Balance {
    /// Looks at the cycles in which each worker moved frames so far, `elapsed` cycles after the
    /// last look. Returns the most and the least loaded worker if their rings are to be weighed.
    pub fn look(&mut self, busy: &[u64], elapsed: u64) -> Option<(usize, usize)> {
        self.looks += 1;
        let known = self.busy.len().min(busy.len());
        self.loads.resize(busy.len(), None);
        for ((load, now), before) in self.loads.iter_mut().zip(busy).zip(&self.busy) {
            let part = now.wrapping_sub(*before) as f64 / elapsed.max(1) as f64;
            // As guests send in bursts, a single look tells little, but for the first.
            let before = load.unwrap_or(part.min(1.0));
            *load = Some(before + (part.min(1.0) - before) / 4.0);
        }
        self.busy = busy.to_vec();
        if known < busy.len() {
            return None; // one is new
        }
        let by_load = |a: &usize, b: &usize| self.load(*a).total_cmp(&self.load(*b));
        let most = (0..busy.len()).max_by(by_load)?;
        let least = (0..busy.len()).min_by(by_load)?;
        let (high, low) = (self.load(most), self.load(least));
        let uneven = high > REST && high - low > UNEVEN * (high + low) / 2.0;
        self.uneven = if uneven { self.uneven + 1 } else { 0 };
        (self.uneven >= 2).then_some((most, least))
    }

    /// Returns a worker's load, of 1.
    pub fn load(&self, worker: usize) -> f64 {
        self.loads.get(worker).copied().flatten().unwrap_or(0.0)
    }

    /// Returns the rings that are to go from the most to the least loaded worker, of those with
    /// their loads. Each brings the two nearer.
    pub fn choose(
        &mut self,
        (most, least): (usize, usize),
        rings: &[(RingPlace, f64)],
    ) -> Vec<RingPlace> {
        let looks = self.looks;
        self.moved.retain(|_, at| looks - *at < STAYS);
        let mut gap = self.load(most) - self.load(least);
        let may =
            |(ring, load): &&(RingPlace, f64)| *load >= LEAST && !self.moved.contains_key(ring);
        let mut left: Vec<(RingPlace, f64)> = rings.iter().filter(may).copied().collect();
        let (mut chosen, mut moved) = (Vec::new(), 0.0);
        while chosen.len() < MOST {
            let rest = |load: f64| (gap - 2.0 * load).abs();
            let best = (0..left.len()).min_by(|a, b| {
                let load = |at: usize| left.get(at).map_or(0.0, |(_, load)| *load);
                // One that has more than half of it goes only if no other can.
                let large = |at: usize| load(at) > gap / 2.0;
                let near = || rest(load(*a)).total_cmp(&rest(load(*b)));
                large(*a).cmp(&large(*b)).then_with(near)
            });
            let Some((at, (ring, load))) = best.and_then(|at| Some((at, *left.get(at)?))) else {
                break;
            };
            if load > gap / 2.0 && rest(load) > gap * (1.0 - WORTH) {
                break;
            }
            left.swap_remove(at);
            gap -= 2.0 * load;
            moved += load;
            self.moved.insert(ring, looks);
            chosen.push(ring);
            if gap <= 0.0 {
                break;
            }
        }
        // What is known of both is of before. They are judged anew by two looks from now on.
        for (worker, change) in [(most, -moved), (least, moved)] {
            let load = self.load(worker) + change;
            self.loads.iter_mut().skip(worker).take(1).for_each(|known| *known = Some(load));
        }
        self.uneven = 0;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::place::PortRef;
    use proptest::prelude::*;

    fn ring(slot: u32) -> RingPlace {
        (PortRef { slot, incarnation: 1 }, 0)
    }

    /// Rings of workers that do all they are asked for, up to their processor's limit.
    struct Model {
        balance: Balance,
        rings: Vec<(RingPlace, f64, usize)>,
        busy: Vec<u64>,
        moves: usize,
    }

    impl Model {
        fn new(workers: usize, loads: &[f64]) -> Model {
            let rings = loads.iter().zip(0..).map(|(load, slot)| (ring(slot), *load, 0)).collect();
            Model { balance: Balance::default(), rings, busy: vec![0; workers], moves: 0 }
        }

        fn load(&self, worker: usize) -> f64 {
            self.rings.iter().filter(|ring| ring.2 == worker).map(|ring| ring.1).sum()
        }

        fn look(&mut self) {
            for at in 0..self.busy.len() {
                self.busy[at] += (self.load(at).min(1.0) * 1e6) as u64;
            }
            let Some((most, least)) = self.balance.look(&self.busy, 1_000_000) else { return };
            let of = |ring: &&(RingPlace, f64, usize)| ring.2 == most;
            let full = self.load(most).max(1.0);
            let theirs: Vec<(RingPlace, f64)> =
                self.rings.iter().filter(of).map(|ring| (ring.0, ring.1 / full)).collect();
            for chosen in self.balance.choose((most, least), &theirs) {
                self.moves += 1;
                self.rings.iter_mut().filter(|ring| ring.0 == chosen).for_each(|it| it.2 = least);
            }
        }

        fn spread(&self) -> f64 {
            let loads: Vec<f64> = (0..self.busy.len()).map(|at| self.load(at)).collect();
            let (high, low) = loads
                .iter()
                .fold((0.0f64, f64::MAX), |(high, low), load| (high.max(*load), low.min(*load)));
            (high - low) / ((high + low) / 2.0)
        }
    }

    #[test]
    fn a_busy_and_an_idle_worker_are_level_within_ten_looks() {
        for rings in [4, 8, 16, 100] {
            let mut model = Model::new(2, &vec![1.0 / f64::from(rings); rings as usize]);
            (0..10).for_each(|_| model.look());
            assert!(model.spread() <= UNEVEN, "{rings}: {}", model.spread());
            let moves = model.moves;
            (0..100).for_each(|_| model.look());
            assert_eq!(model.moves, moves, "{rings}: nothing moves when all is level");
        }
    }

    #[test]
    fn a_ring_that_fills_a_worker_stays_and_the_others_go() {
        let mut model = Model::new(2, &[0.6, 0.1, 0.1, 0.1]);
        (0..30).for_each(|_| model.look());
        assert_eq!(model.rings.iter().map(|ring| ring.2).collect::<Vec<_>>(), [0, 1, 1, 1]);
        let mut model = Model::new(2, &[0.9]);
        (0..30).for_each(|_| model.look());
        assert_eq!(model.moves, 0);
    }

    #[test]
    fn at_rest_nothing_moves() {
        let mut model = Model::new(4, &[0.05, 0.05, 0.05]);
        (0..100).for_each(|_| model.look());
        assert_eq!(model.moves, 0);
    }

    proptest! {
        /// With any loads, moves come to an end, and no move makes things worse.
        #[test]
        fn moves_end(loads in prop::collection::vec(0.0f64..0.3, 1..40), workers in 2usize..6) {
            let mut model = Model::new(workers, &loads);
            (0..200).for_each(|_| model.look());
            let (moves, spread) = (model.moves, model.spread());
            (0..100).for_each(|_| model.look());
            // Loads that no division makes equal may change places now and then.
            prop_assert!(model.moves - moves <= 10, "{} more moves", model.moves - moves);
            prop_assert!(model.spread() <= spread.max(UNEVEN) + 0.5);
        }
    }
}
