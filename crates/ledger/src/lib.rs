//! Records that cannot be altered unseen: each entry carries the hash of the one before, and heads are signed.
//!
//! * [`Entry`] is one record; [`Entry::next`] makes the one that follows a [`Head`].
//! * [`verify`] walks a chain and names the first thing that is wrong with it, and where: a [`Fault`].
//! * [`Signer`] makes a [`SignedHead`], which a [`PublicKey`] checks. Whoever kept a head can show later that the record
//!   was not rewritten or cut since, without having kept the record.
//!
//! What this proves: given a head from outside (kept by a reader, or signed by a key that the forger does not have), no
//! entry up to it was changed, removed, added or moved. What it cannot prove: that nothing was removed *after* the
//! newest head that anybody kept. So heads are signed with every entry, and readers should keep one.
//!
//! Nothing here does IO, and nothing asks for the time: where entries are stored is the business of those who store them.

mod canonical;
mod entry;
mod hash;
mod sign;
mod verify;

pub use canonical::settle;
pub use entry::{Entry, Head, HeadFormat, LineFault};
pub use hash::{Hash, HashFormat};
pub use sign::{BadKey, BadSignature, PublicKey, SignedHead, Signer};
pub use verify::{Fault, verify, verify_lines};
