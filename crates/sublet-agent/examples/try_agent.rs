//! Temporary.
#[derive(clap::Parser)]
struct Cli { #[command(flatten)] args: sublet_agent::Args }
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let cli = <Cli as clap::Parser>::parse();
    sublet_telemetry::start_logging()?;
    sublet_agent::run(cli.args).await
}
