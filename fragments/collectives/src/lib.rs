//! Collectives of the ranks of one correlated set: who puts what where, who reads it, and in which
//! order it is folded; and of several sets, by who stands for each. No I/O: memory and messages are
//! the driver's.
//!
//! Invariants; tests name them:
//! * K1 A slot is written again only when every member has finished the step that it was written
//!   for.
//! * K2 A slot is read only after its writer has raised its flag for this step, and before the
//!   reader says that it has finished the step.
//! * K3 What a member does is a function of the call's kind, root, sizes and element, and of its
//!   rank: not of when others come, nor of where they are, nor of how their data travels.
//! * K4 Every result is folded from the last rank to the first, `r(i) op (r(i+1) op …)`, element by
//!   element, however a call is cut into steps.
//! * K5 Every member takes the same number of steps for the same call.
//! * K6 When the set's memory is not common any more (it was restored onto several nodes), what was
//!   up at the moment of the snapshot is read in the memory of that moment, and everything else
//!   travels as a message: each once, and nothing is awaited in vain. From that moment until it is
//!   known whether the memory is common, nobody goes on to a next put, nor reads what was not up.
//! * K7 Over several sets: what each set has folded is folded in the order of sets, along a tree
//!   that depends on the number of sets only. It is in the order of ranks, or the operation
//!   commutes. What a rank has of a scan is folded of those before it only, in their order.
//! * K8 What is sent to which set, in which order, and what is in it, is a function of the call: a
//!   set that was rolled back repeats it. All that is sent in a call is received in it.
//! * K9 What is sent is not changed before it has left.
//! * K10 What one member gives another arrives there, once, and nowhere else: between sets blocks
//!   lie in the order of sets, for the program in that of ranks.
#![forbid(unsafe_code)]

pub mod carrier;
mod copies;
pub mod member;
pub mod over_sets;
pub mod plan;
pub mod sets;
pub mod shape;
