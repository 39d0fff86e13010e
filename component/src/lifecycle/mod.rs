//! From MPI_Init to MPI_Finalize: start, finish, the report and the summary.

pub mod finish;
pub mod report;
pub mod start;
pub mod summary;
