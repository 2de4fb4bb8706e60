//! Choices that the specification leaves open: the model tries both ways, and the switch's effects
//! tell which one it took.

/// The answers to the open questions of one step, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    given: Vec<bool>,
    asked: usize,
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

    /// Runs `step` once for every sequence of answers.
    pub fn all<T>(mut step: impl FnMut(&mut Choices) -> T) -> Vec<T> {
        let (mut choices, mut results) = (Choices::default(), Vec::new());
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
