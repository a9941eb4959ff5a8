//! Collection of data from all JVMs of the host, window by window.
//!
//! | module | content |
//! |---|---|
//! | [`takers`] | threads of the library's tracers |
//! | [`piece`] | batches that the tracers deliver |
//! | [`jvms`] | the running JVMs and their identities |
//! | [`gather`] | builds windows out of batches, and adds them to the totals |
//! | [`saving`] | keeps CPU time and memory within limits by reducing what is collected |
//! | [`handing`] | worker that hands windows on to the store and to targets |
//! | [`signals`] | requests received as signals |
//! | [`daemon`] | the main loop |

pub mod daemon;
pub mod gather;
pub mod handing;
pub mod jvms;
pub mod piece;
pub mod saving;
pub mod signals;
pub mod takers;
