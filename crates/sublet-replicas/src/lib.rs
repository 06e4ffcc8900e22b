//! What several replicas of one process need: one of them that writes, and certificates by which
//! they know each other or are known.
//!
//! It decides by pure functions and carries out with `sublet_client`. What is written within a
//! leadership, and by whom a certificate is trusted, is up to the process.

pub mod credentials;
pub mod leader;
pub mod secret;
