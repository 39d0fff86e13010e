state > before
umask 077
"$XTASK" install --system
is_installed
survives
# Others can read it.
[ -z "$(find /usr/lib/*/openmpi /usr/lib/*/pmix2 ! -type l ! -perm -o=r)" ]
# An update of PMIx does not take it away, and changes the file that comes back.
dpkg-divert --list '*pmix-mca-params.conf' | grep -q 'local diversion'
"$XTASK" uninstall --system
state > after
cmp before after || { diff before after; exit 1; }
dpkg --verify libpmix2t64 > said
! grep -q pmix-mca-params.conf said
echo passed
