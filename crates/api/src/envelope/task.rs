//! Tasks: requests that are being answered, message by message.

use std::{fmt, ops::Range};

use zeroize::Zeroizing;

use crate::{
    crypt::ReplyTo,
    envelope::{
        encrypted::{ENCRYPTED, encrypted_fields},
        handler::{Context, Failure},
        scan::{self, Content, Fields},
    },
};

/// Fields that are stepped over in one turn.
pub(super) const FIELDS: usize = 10_000;

/// The field of [`crate::proto::Messages`] with messages.
pub(super) const MESSAGES: u32 = 1;

/// A request that is being answered, message by message.
///
/// Between two of them others may be answered. It holds one decoded message at a time, however many
/// arrived: first all are decoded to see that they can be, and then each again when it is carried
/// out.
pub struct Task {
    pub(super) frame: Zeroizing<Vec<u8>>,
    /// Range of the messages in the frame.
    pub(super) content: Range<usize>,
    pub(super) to: Option<ReplyTo>,
    pub(super) context: Context,
    pub(super) stage: Stage,
    /// The shortest answers to all messages that have none yet.
    pub(super) answers: u64,
    pub(super) reply: Vec<u8>,
    /// True if it has a message that changes what is declared.
    pub(super) declares: bool,
    /// Answers so far.
    pub(super) answered: u64,
    /// Number of answers before that of the first message whose change a store has to keep.
    pub(super) first_change: Option<u64>,
    /// Why its changes are refused, if they are without asking the handler.
    pub(super) refused: Option<Failure>,
}

/// Progress of a request. Places are those where the next message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Checked(usize),
    CarriedOut(usize),
    /// All is carried out, and not committed.
    Kept,
    Answered,
}

impl Task {
    /// Bytes of the reply so far.
    pub fn reply_so_far(&self) -> usize {
        self.reply.len()
    }

    /// True if it made changes that are not committed.
    pub fn has_changed(&self) -> bool {
        self.first_change.is_some() && self.stage != Stage::Answered
    }

    /// True if nothing is left to do but to commit its changes.
    pub fn waits_for_commit(&self) -> bool {
        self.stage == Stage::Kept
    }

    /// Has its changes refused.
    pub fn refuse_changes(&mut self, why: Failure) {
        self.refused = Some(why);
    }

    pub(super) fn next_message(&self, at: usize) -> Result<Next, scan::Malformed> {
        let mut fields = Fields::within(&self.frame, at..self.content.end);
        for _ in 0..FIELDS {
            match fields.next()? {
                None => return Ok(Next::End),
                Some((MESSAGES, Content::Bytes(place))) => {
                    return Ok(Next::Message(place, fields.position()));
                }
                // Nothing of it counts in clear text, but it has to be sound.
                Some((ENCRYPTED, Content::Bytes(place))) => {
                    encrypted_fields(&fields, place)?;
                }
                Some(_) => {}
            }
        }
        Ok(Next::Nothing(fields.position()))
    }
}

/// Next part of an envelope, and the offset of the part behind it.
pub(super) enum Next {
    Message(Range<usize>, usize),
    /// Many fields that are unknown.
    Nothing(usize),
    End,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// Ends a task with a reply as it is.
pub(super) fn answered(task: &mut Task, reply: &[u8]) {
    task.reply = reply.to_vec();
    task.stage = Stage::Answered;
}
