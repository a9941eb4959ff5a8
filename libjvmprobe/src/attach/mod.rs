//! Operations that affect a JVM: sending commands, having it write files, loading an agent. They are used only if an
//! option requests them, or after a message that announces them.
//!
//! | module | contents |
//! |---|---|
//! | `jcmd` | HotSpot's attach protocol: commands to a running JVM |
//! | [`agent`] | our JVMTI agent, loaded temporarily |
//! | [`agent_map`] | parser of the code map that the agent writes |
//! | [`perf_map`] | the code map that a JVM writes itself |

pub mod agent;
pub mod agent_map;
pub(crate) mod jcmd;
pub mod perf_map;
