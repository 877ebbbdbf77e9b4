//! `gantry fleet`.

mod sealing;
mod serve;
mod state;
mod token;

use clap::{Args, Subcommand};

pub use state::Database;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server.
    Serve(Box<serve::Arguments>),
    /// Issue a token that is signed with the server's own secret.
    Token(token::Arguments),
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments).await,
        Command::Token(arguments) => token::run(arguments),
    }
}
