//! What the fleet decides, without touching anything: no client, no files, no clock. Those who do IO hand in what they
//! read and act on what they get back.

pub mod crd_diff;
