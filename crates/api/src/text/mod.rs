//! The text format of protobuf, as the C++ library writes and reads it.
//!
//! Fields are printed in the order of their numbers, one per line, nested messages indented by two
//! spaces; strings are ASCII with C escapes. Hashes of printed rules identify them at the command
//! line, so the output is exact to the byte.

mod lexer;
mod parse;
mod print;

pub use lexer::Position;
pub use parse::{ParseError, UnknownField, parse};
pub use print::print;
