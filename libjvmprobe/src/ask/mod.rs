//! All that touches a JVM: commands to it, files that it writes, an agent in it. Only where an
//! option asks for it, or a line says so before.
//!
//! | module | what it knows |
//! |---|---|
//! | `jcmd` | HotSpot's attach protocol: commands to a running JVM |
//! | [`agent`] | our JVMTI agent, loaded for a moment |
//! | [`agent_map`] | the map of its code that the agent writes |
//! | [`perf_map`] | the map that a JVM writes itself |

pub mod agent;
pub mod agent_map;
pub(crate) mod jcmd;
pub mod perf_map;
