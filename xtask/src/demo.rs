//! tmp
use anyhow::Result;
#[derive(clap::Args)]
pub(crate) struct Arguments {}
pub(crate) fn run(_: &Arguments) -> Result<()> {
    Ok(())
}
