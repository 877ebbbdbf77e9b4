//! Pure pieces that several kinds build their children from. Nothing here does IO, except that `autoscaler` asks the
//! server once which version it speaks, that `reach` makes clients, and that `claim` looks at what is there.

pub mod autoscaler;
pub mod claim;
pub mod deployment;
pub mod merge;
pub mod names;
pub mod pod;
pub mod reach;
pub mod refs;
pub mod rollout;
pub mod route;
pub mod telemetry;
pub mod verdicts;
