//! Security groups on whole daemons: who may talk to whom, in each direction, over the API that
//! operators use.

mod bounds;
mod changes;
mod discovery;
mod operators;
mod rules;
mod sessions;
