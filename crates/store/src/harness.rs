//! Frames between daemon and writer, for fuzzing.

use crate::{
    record::Commit,
    wire::{self, Order},
};

/// Reads all frames of a stream, each as an order and as a word of the writer. Returns the commits.
///
/// # Panics
/// If one is not read again as it was written.
pub fn read_all(mut stream: &[u8]) -> Vec<Commit> {
    let mut commits = Vec::new();
    while let Ok(Some(frame)) = wire::receive(&mut stream) {
        if let Ok(word) = wire::word(&frame) {
            assert_eq!(wire::word(&wire::of_word(&word)).expect("its own words"), word);
        }
        if let Ok(order) = wire::order(&frame) {
            assert_eq!(wire::order(&wire::of_order(&order)).expect("its own words"), order);
            if let Order::Commit(commit) = order {
                commits.push(commit);
            }
        }
    }
    commits
}

/// Writes a commit as a frame.
pub fn written(commit: &Commit) -> Vec<u8> {
    let mut stream = Vec::new();
    // A vector takes everything.
    let _ = wire::send(&mut stream, &wire::of_order(&Order::Commit(commit.clone())));
    stream
}
