//! All that is taken of all JVMs of the host, window by window.
//!
//! | module | what it knows |
//! |---|---|
//! | [`takers`] | the library's takers, each in a thread of its own |
//! | [`piece`] | what they hand over |
//! | [`jvms`] | which JVMs there are, and who they are |
//! | [`gather`] | pieces put together to windows, and added up to figures |
//! | [`saving`] | how much of the machine we take, and how to take less |
//! | [`handing`] | windows handed on, to the store and to targets |
//! | [`signals`] | what the daemon is asked for by signals |
//! | [`daemon`] | the loop |

pub mod daemon;
pub mod gather;
pub mod handing;
pub mod jvms;
pub mod piece;
pub mod saving;
pub mod signals;
pub mod takers;
