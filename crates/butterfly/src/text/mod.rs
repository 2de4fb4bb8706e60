//! Printed things: pages, tables, JSON, names of protocols.

pub mod json;
pub mod output;
pub mod page;
pub mod protocol;
pub mod table;
