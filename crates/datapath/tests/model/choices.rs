//! Choices that the specification leaves open: the model tries both ways, and the switch's effects
//! tell which one it took.

use std::net::IpAddr;

/// The answers to the open questions of one step, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    given: Vec<bool>,
    asked: usize,
    /// Sources of what the switch sent in the step: protocol, address, and port or identifier. Of
    /// very many right ones, one of these is the one that it chose.
    shown: Vec<(u8, IpAddr, u16)>,
}

impl Choices {
    /// Returns whether to go the second way where either is right.
    pub fn either(&mut self) -> bool {
        if self.asked == self.given.len() {
            self.given.push(false);
        }
        self.asked += 1;
        self.given[self.asked - 1]
    }

    /// Returns one of the elements, each of which is right. There is one at least.
    pub fn one_of<T: Clone>(&mut self, among: &[T]) -> T {
        let last = among.len() - 1;
        let at = (0..last).find(|_| self.either()).unwrap_or(last);
        among[at].clone()
    }

    /// Returns the sources of what the switch sent.
    pub fn shown(&self) -> &[(u8, IpAddr, u16)] {
        &self.shown
    }

    /// Runs `step` once for every sequence of answers.
    pub fn all<T>(step: impl FnMut(&mut Choices) -> T) -> Vec<T> {
        Choices::all_showing(&[], step)
    }

    /// Does the same while the switch shows these sources.
    pub fn all_showing<T>(
        shown: &[(u8, IpAddr, u16)],
        mut step: impl FnMut(&mut Choices) -> T,
    ) -> Vec<T> {
        let mut choices = Choices { shown: shown.to_vec(), ..Choices::default() };
        let mut results = Vec::new();
        loop {
            choices.asked = 0;
            results.push(step(&mut choices));
            choices.given.truncate(choices.asked);
            // Count in binary: the last "no" becomes a "yes".
            while choices.given.last() == Some(&true) {
                choices.given.pop();
            }
            match choices.given.last_mut() {
                Some(last) => *last = true,
                None => return results,
            }
        }
    }
}

#[test]
fn every_sequence_of_answers_is_tried() {
    let tried = Choices::all(|choices| {
        let first = choices.either();
        if first { (true, choices.either(), choices.either()) } else { (false, false, false) }
    });
    assert_eq!(tried.len(), 5);
    assert_eq!(tried.iter().filter(|(first, ..)| *first).count(), 4);
}
