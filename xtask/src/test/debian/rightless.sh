export HOME=/home/somebody
mkdir -p $HOME/.pmix $HOME/work /opt/mine
printf 'pmix_server_max_wait = 5\nmca_base_component_path = /opt/mine' > $HOME/.pmix/mca-params.conf
cp "$PWD/common.sh" $HOME/work
chown -R 1000:1000 $HOME
# Folders on the way to what is built may be root's alone.
for file in "$XTASK" "$RING" "$LONG"; do
    while file=$(dirname "$file") && [ "$file" != / ]; do
        chmod a+x "$file"
    done
done
cat > $HOME/script.sh <<'END'
. ./common.sh
# mpirun's agent for other nodes is root's, too.
MPIRUN_OPTIONS='--map-by :OVERSUBSCRIBE --mca btl_tcp_disable_family 6'
unset RUSTBTL_JOBS
state > before
"$XTASK" install
grep -q '^mca_base_component_path = /opt/mine:/home/somebody/' ~/.pmix/mca-params.conf
is_installed
survives
"$XTASK" uninstall
state > after
cmp before after || { diff before after; exit 1; }
if "$XTASK" install --system 2> said; then
    exit 1
fi
grep -q 'only root' said
END
cd $HOME/work
setpriv --reuid 1000 --regid 1000 --clear-groups sh -eu $HOME/script.sh
echo passed
