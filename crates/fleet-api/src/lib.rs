//! What goes over the wire: the bodies of the REST API and the list of its operations, from which the OpenAPI document is
//! made. Names and shapes only; what they mean is decided elsewhere.

mod audit;
mod clusters;
mod crds;
mod openapi;
mod operation;
mod operators;
mod page;
mod people;

pub use audit::*;
pub use clusters::*;
pub use crds::*;
pub use openapi::document;
pub use operation::{Operation, Parameter, Spec};
pub use operators::*;
pub use page::*;
pub use people::*;
