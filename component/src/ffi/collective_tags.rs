//! The tags of Open MPI's collectives, so that messages name what the program has called.

/// Tags from here downwards: `MCA_COLL_BASE_TAG_ALLGATHER` and those after it (ompi/mca/coll/base/
/// coll_tags.h, the same in 4.1 and 5.0). What nonblocking collectives use follows.
const FIRST: i32 = -10;
const NAMES: [&str; 17] = [
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Allreduce",
    "MPI_Alltoall",
    "MPI_Alltoallv",
    "MPI_Alltoallw",
    "MPI_Barrier",
    "MPI_Bcast",
    "MPI_Exscan",
    "MPI_Gather",
    "MPI_Gatherv",
    "MPI_Reduce",
    "MPI_Reduce_scatter",
    "MPI_Reduce_scatter_block",
    "MPI_Scan",
    "MPI_Scatter",
    "MPI_Scatterv",
];

/// The collective whose messages have this tag, or one that is made of it; `None`: the message is
/// the program's own, or a nonblocking collective's.
pub fn collective_of(tag: i32) -> Option<&'static str> {
    NAMES.get(usize::try_from(FIRST.checked_sub(tag)?).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_collectives_have_names() {
        assert_eq!(collective_of(-10), Some("MPI_Allgather"));
        assert_eq!(collective_of(-12), Some("MPI_Allreduce"));
        assert_eq!(collective_of(-26), Some("MPI_Scatterv"));
        for tag in [i32::MAX, 7, 0, -1, -9, -27, i32::MIN + 1] {
            assert_eq!(collective_of(tag), None, "{tag}");
        }
    }
}
