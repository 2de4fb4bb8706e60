//! What a device tells.

use crate::{net::Features, port::PortEvents};

/// Who wants to know what becomes of a device. Called from its control thread (and from
/// [`super::Device::resume`]), without locks held; must not call back into [`super::Device::stop`],
/// [`super::Device::export`] or drop the device.
pub trait DeviceEvents: PortEvents {
    /// A front end attached: it connected and began to speak.
    fn attached(&self);
    /// It is gone, and so is everything it gave us. `reason` is a sentence without a full stop.
    fn detached(&self, reason: &str);
    /// It said which of the offered features its guest takes: for the first time, or others than
    /// before. Logging, which is the front end's own wish, does not count.
    fn negotiated(&self, accepted: Features) {
        let _ = accepted;
    }
    /// The guest's driver uses both rings from now on, or not any more. Of a front end that leaves
    /// only that is told.
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
