//! Events that a device reports to its owner.

use crate::{net::Features, port::PortEvents};

/// Receiver of a device's events.
///
/// The control thread calls it without locks held, and so does [`super::Device::resume`]. An
/// implementation must not call [`super::Device::stop`] or [`super::Device::export`], nor drop the
/// device.
pub trait DeviceEvents: PortEvents {
    /// A front end attached: it connected and began to speak.
    fn attached(&self);
    /// The state of a front end that another device served is being taken up, until this is told
    /// with `false`. What happens meanwhile has happened before.
    fn resuming(&self, under_way: bool) {
        let _ = under_way;
    }
    /// A front end that another device served goes on with this one. It noticed nothing.
    fn resumed(&self) {}
    /// The front end is gone, and so is everything it gave us. `reason` is a sentence without a
    /// full stop.
    fn detached(&self, reason: &str);
    /// The front end accepted some of the offered features for its guest: for the first time, or
    /// others than before. Logging, which is the front end's own wish, does not count.
    fn negotiated(&self, accepted: Features) {
        let _ = accepted;
    }
    /// The guest's driver begins (`true`) or ceases (`false`) to use both rings. A front end that
    /// leaves causes [`Self::detached`] only.
    fn driving(&self, both: bool) {
        let _ = both;
    }
    /// The guest's rings go on where another device left them, or the front end asks for it: other
    /// hosts may have to be told where the machine is now. Not told on a mere connection:
    /// during a live migration the machine still runs elsewhere then.
    fn announce(&self) {}
    /// A ring that the front end started cannot run, or will see nothing of what the guest writes.
    /// `why` is a sentence without a full stop.
    fn trouble(&self, why: &str) {
        let _ = why;
    }
}
