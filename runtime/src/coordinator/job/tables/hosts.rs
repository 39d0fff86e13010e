//! Names of hosts.

/// Whether two names are of the same host: mpirun may leave the domain out.
pub(crate) fn same_host(one: &str, other: &str) -> bool {
    let bare = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    one == other || (bare(one) == bare(other) && (one.contains('.') != other.contains('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_domain_are_of_one_host() {
        assert!(same_host("n1", "n1") && same_host("n1", "n1.a") && same_host("n1.a", "n1"));
        assert!(!same_host("n1.a", "n1.b") && !same_host("n1", "n11") && !same_host("n1", "n2"));
    }
}
