//! A command that a tool starts, to trace it from its first instruction on.

use std::ffi::{OsStr, OsString};

use clap::{Args, ValueHint};

use crate::{
    Result,
    follow::{
        command::Waiting,
        user::{self, User},
    },
    own::note,
};

/// What the command line says of it.
#[derive(Args, Clone, Debug, Default)]
pub struct Started {
    /// Start this command and trace it from its first instruction
    #[arg(last = true, index = 3, value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments, conflicts_with_all = ["pids", "all", "name"])]
    pub command: Vec<OsString>,

    /// Start the command as this user (a name or a number)
    #[arg(long, value_name = "NAME", requires = "command",
        conflicts_with_all = ["pids", "all", "name"])]
    user: Option<String>,
}

impl Started {
    /// The program that is to be started, if any is.
    pub fn program(&self) -> Option<&OsStr> {
        self.command.first().map(OsString::as_os_str)
    }

    /// The user that it is to run as. A name that nobody has is best told at once.
    ///
    /// # Errors
    /// What [`User::find`] says.
    pub fn user(&self) -> Result<Option<User>> {
        self.user.as_deref().map(User::find).transpose()
    }

    /// Forks the command; it waits. One line says so if it runs as root where that may not be meant.
    ///
    /// # Errors
    /// What [`Waiting::fork`] says.
    pub fn fork(&self, user: Option<User>) -> Result<Option<Waiting>> {
        if self.command.is_empty() {
            return Ok(None);
        }
        if let (None, Some(warning)) = (&user, user::warning()) {
            note(&warning);
        }
        Waiting::fork(&self.command, user).map(Some)
    }
}
