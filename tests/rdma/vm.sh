#!/bin/bash
# A virtual machine with two Soft-RoCE adapters, for what needs the real ABI of verbs.
#
#   vm.sh FOLDER    runs FOLDER/job.sh in it; FOLDER is /tmp/out there. Exit status: the job's.
#   77: the machine cannot be had (no kernel, no qemu, no network), and why is on stderr
#   78: it did not come to an end
#
# The guest's root is this host's root, read-only, under an overlay in memory: what is installed and
# built here is there. rxe1 is on 10.9.0.1, rxe2 on 10.9.0.2; both are in the first network
# namespace, since rxe of this kernel knows no other, and reach each other by routes that send
# packets of the own host through the wire. No KVM: the node may exist and not work, and a guest
# that hangs says nothing. The kernel is Debian's, since others have no rxe.
#
# Kernel, qemu and what qemu needs are fetched by apt and unpacked, not installed, into
# ${RUSTBTL_CACHE:-~/.cache/rustbtl}/rdma-vm/KEY. KEY is of this file and of the packages' versions.
set -euo pipefail

no() { echo "no virtual machine: $*" >&2; exit 77; }

out=$(realpath "$1")
for needed in busybox apt-get dpkg-deb rdma ip; do
    command -v $needed > /dev/null || no "$needed is not installed"
done
file "$(command -v busybox)" 2> /dev/null | grep -q dynamically && no "busybox is not static"

image=$(apt-cache depends linux-image-amd64 2> /dev/null |
    awk '/Depends: linux-image/ { print $2; exit }')
[ -n "$image" ] || no "apt knows no kernel (apt-get update)"
packages=$(apt-get install -s --no-install-recommends qemu-system-x86 2> /dev/null |
    awk '/^Inst/ { print $2 }') || packages=
if [ -z "$packages" ] && ! command -v qemu-system-x86_64 > /dev/null; then
    no "apt knows no qemu (apt-get update)"
fi
versions=$(apt-cache policy $image $packages | grep -E '^[a-z]|Candidate')
key=$( (cat "$0"; echo "$versions") | sha256sum | cut -c1-16)
cache=${RUSTBTL_CACHE:-$HOME/.cache/rustbtl}/rdma-vm
vm=$cache/$key

modules() { # FILE MODULE...: copies them and what they need, in order, and lists them in FILE
    local list=$1 at name found
    shift
    for name in "$@"; do
        found=$(awk -F: -v want="/${name//_/[-_]}[.]ko" '$1 ~ want { print; exit }' "$dep")
        [ -n "$found" ] || continue
        # modules.dep names the nearest need first.
        for at in $(echo "${found#*:}" | tr ' ' '\n' | tac) "${found%%:*}"; do
            grep -qx "/lib/m/${at##*/}" "$root"/lib/*.list 2> /dev/null && continue
            cp "$tree/$at" "$root/lib/m/"
            echo "/lib/m/${at##*/}" >> "$root/lib/$list"
        done
    done
}

if [ ! -e "$vm/complete" ]; then
    mkdir -p "$cache"
    fresh=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    mkdir "$fresh/debs" "$fresh/qemu" "$fresh/kernel"
    (cd "$fresh/debs" && apt-get -qq download $image $packages) > "$fresh/log" 2>&1 ||
        no "apt cannot fetch kernel and qemu: $(tail -n 1 "$fresh/log")"
    for deb in "$fresh"/debs/*.deb; do
        case ${deb##*/} in
            linux-image*) dpkg-deb -x "$deb" "$fresh/kernel" ;;
            *) dpkg-deb -x "$deb" "$fresh/qemu" ;;
        esac
    done
    release=$(ls "$fresh/kernel/lib/modules")
    tree=$fresh/kernel/lib/modules/$release
    busybox depmod -b "$fresh/kernel" "$release"
    dep=$tree/modules.dep
    root=$fresh/root
    mkdir -p "$root"/{bin,lib/m,proc,sys,dev}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for name in sh mount insmod mkdir cat poweroff echo chroot; do
        ln -s busybox "$root/bin/$name"
    done
    modules boot.list virtio_pci 9pnet_virtio 9p overlay
    modules rdma.list veth ib_core ib_uverbs rdma_cm rdma_ucm crc32_generic crc32_pclmul rdma_rxe \
        sch_netem
    cat > "$root/init" <<'INIT'
#!/bin/sh
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $(cat /lib/boot.list); do insmod $m; done
mkdir -p /ro /rw /n
plan=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $plan,cache=loose,ro host /ro || poweroff -f
mount -t tmpfs t /rw; mkdir /rw/u /rw/w
mount -t overlay -o lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w o /n
for m in $(cat /lib/rdma.list); do insmod $m; done
mount -t proc p /n/proc; mount -t sysfs s /n/sys; mount -t devtmpfs d /n/dev
mkdir -p /n/dev/shm /n/dev/pts
mount -t tmpfs t /n/dev/shm; mount -t devpts d /n/dev/pts
mount -t tmpfs t /n/tmp; mount -t tmpfs t /n/run
mkdir /n/tmp/out; mount -t 9p -o $plan out /n/tmp/out
echo rxevm > /proc/sys/kernel/hostname
chroot /n /bin/bash /tmp/out/.start > /n/tmp/out/log 2>&1
echo $? > /n/tmp/out/status
poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2> /dev/null | gzip -1) > "$fresh/initrd.gz"
    mv "$fresh"/kernel/boot/vmlinuz* "$fresh/vmlinuz"
    rm -rf "$fresh/debs" "$fresh/kernel" "$fresh/root"
    touch "$fresh/complete"
    # Another run may have been quicker.
    mv -T "$fresh" "$vm" 2> /dev/null || [ -e "$vm/complete" ] || no "$vm cannot be made"
fi

cat > "$out/.start" <<'START'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
echo "127.0.0.1 localhost rxevm" > /etc/hosts
ip link set lo up; ulimit -l unlimited
settings=/proc/sys/net/ipv4/conf
echo 0 > $settings/all/rp_filter
ip link add v1 type veth peer name v2
for i in 1 2; do
    ip addr add 10.9.0.$i/32 dev v$i; ip link set v$i mtu 4200 up
    echo 1 > $settings/v$i/accept_local; echo 0 > $settings/v$i/rp_filter
    echo 1 > $settings/v$i/arp_ignore
done
ip route add 10.9.0.2 dev v1 table 101; ip route add 10.9.0.1 dev v2 table 102
ip rule add pref 100 lookup local; ip rule del pref 0
for i in 1 2; do
    ip rule add pref 1$i iif v$i lookup local; ip rule add pref 2$i oif v$i lookup 10$i
    rdma link add rxe$i type rxe netdev v$i || exit 77
done
for t in $(seq 100); do
    [ "$(rdma link | grep -c ACTIVE)" = 2 ] && break
    sleep .1
done
. /tmp/out/job.sh
START

qemu=$vm/qemu/usr/bin/qemu-system-x86_64
[ -x "$qemu" ] || qemu=$(command -v qemu-system-x86_64) || no "no qemu"
rm -f "$out/status" "$out/log"
shared=security_model=none
LD_LIBRARY_PATH=$vm/qemu/usr/lib/x86_64-linux-gnu timeout "${RUSTBTL_VM_SECONDS:-170}" "$qemu" \
    -L "$vm/qemu/usr/share/qemu" -L "$vm/qemu/usr/share/seabios" -M q35 -accel tcg -cpu max \
    -m 4096 -smp 2 -nodefaults -no-user-config -display none -serial stdio -no-reboot -net none \
    -kernel "$vm/vmlinuz" -initrd "$vm/initrd.gz" -append "console=ttyS0 quiet panic=-1" \
    -fsdev local,id=h,path=/,$shared,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=h,mount_tag=host \
    -fsdev local,id=o,path="$out",$shared -device virtio-9p-pci,fsdev=o,mount_tag=out \
    > "$out/console" 2>&1 || true
cat "$out/log" 2> /dev/null || true
[ -s "$out/status" ] || { echo "the virtual machine gave no result" >&2; exit 78; }
exit "$(cat "$out/status")"
