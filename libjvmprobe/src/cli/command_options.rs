//! A command that a tool starts, to trace it from its first instruction.

use std::ffi::{OsStr, OsString};

use clap::{Args, ValueHint};

use crate::{
    Result,
    jvms::{
        command::HeldCommand,
        user::{self, User},
    },
};

/// Options of a command that the tool starts and traces.
#[derive(Args, Clone, Debug, Default)]
pub struct CommandOptions {
    /// Start this command and trace it from the beginning
    #[arg(last = true, index = 3, value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments, conflicts_with_all = ["pids", "all", "name", "container"])]
    pub command: Vec<OsString>,

    /// Start the command as this user (name or number)
    #[arg(long, value_name = "NAME", requires = "command",
        conflicts_with_all = ["pids", "all", "name", "container"])]
    user: Option<String>,
}

impl CommandOptions {
    /// Returns the program to start, if any.
    pub fn program(&self) -> Option<&OsStr> {
        self.command.first().map(OsString::as_os_str)
    }

    /// Looks up the user that the command runs as. Should be called early, so that an unknown name is reported at once.
    ///
    /// # Errors
    /// Returns the errors of [`User::find`].
    pub fn user(&self) -> Result<Option<User>> {
        self.user.as_deref().map(User::find).transpose()
    }

    /// Forks the command, which waits before exec. Prints a warning if it will run as root, perhaps unintentionally.
    ///
    /// # Errors
    /// Returns the errors of [`HeldCommand::fork`].
    pub fn fork(&self, user: Option<User>) -> Result<Option<HeldCommand>> {
        if self.command.is_empty() {
            return Ok(None);
        }
        if let (None, Some(warning)) = (&user, user::warning()) {
            log::warn!("{warning}");
        }
        HeldCommand::fork(&self.command, user).map(Some)
    }
}
