//! The program that follows a script ([`Calls`]), as a job and on the driver itself.

use anyhow::Result;
use sublet_script::{Calls, compile};

use super::Machine;

impl Machine {
    /// The program's file, compiled for this machine.
    ///
    /// # Errors
    /// There is no C compiler, or it fails.
    pub fn caller(&self) -> Result<String> {
        let file = self.path().join("calls-c");
        if !file.is_file() {
            compile(&file)?;
        }
        Ok(file.display().to_string())
    }

    /// Starts it as a job.
    ///
    /// # Errors
    /// It cannot be compiled or started.
    pub fn calls(&self, flags: &str) -> Result<Calls> {
        Calls::start(self.run(flags).arg(self.caller()?))
    }

    /// Starts it directly on the fake driver, without the product.
    ///
    /// # Errors
    /// As [`Machine::calls`].
    pub fn direct_calls(&self) -> Result<Calls> {
        let mut command = self.command(self.caller()?);
        let libraries = ["libsublet_fakecuda.so", "libsublet_fakenvml.so"];
        command.args(libraries.map(|name| self.built(name)));
        Calls::start(command.env("SUBLET_FAKE_GPU", self.spec()))
    }
}
