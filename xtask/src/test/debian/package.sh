packages() { dpkg-query -W -f '${Package} ${Version} ${Status}\n'; }
"$XTASK" deb --output "$PWD" > name
state > before
packages > packages-before
dpkg --force-unsafe-io -i openmpi-rustbtl_*.deb > said
[ "$(rustbtl --version | cut -d ' ' -f 1)" = rustbtl ]
is_installed
survives
dpkg -P openmpi-rustbtl > said
state > after
packages > packages-after
# dpkg keeps no list of what was purged, but a time in a folder's name may have changed.
cmp packages-before packages-after
grep -v /var/lib/dpkg before > before-files
grep -v /var/lib/dpkg after > after-files
cmp before-files after-files || { diff before-files after-files; exit 1; }
echo passed
