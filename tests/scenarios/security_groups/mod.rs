//! Security groups on whole daemons, set over the API: which vnics may talk to which, in each
//! direction.

mod bounds;
mod changes;
mod discovery;
mod operators;
mod rules;
mod sessions;
