# The guard of one directory of processes. It ends about a second after the harness.
#
#   guard.sh cluster DIR
#   guard.sh node DIR KUBELET
#   guard.sh clean-node DIR KUBELET
#
# KUBELET is the kubelet's folder. The last form only removes what a node of an earlier run has
# left. The other forms read lines from stdin: "+ PID" (a process group was started), "- PID" (the
# group is gone), and "keep" (do not remove DIR). The end of the input means that the harness has
# ended, by itself or by SIGKILL. Then every group that is left is killed, a node's containers,
# mounts and control groups are removed, and DIR is removed.
kind=$1 dir=$2 kubelet=$3
trap '' HUP INT TERM # Ctrl-C ends the harness, and its end ends this script

# Removes what the kubelet and the runtime of the node in DIR have left.
clean_node() {
  [ "$(cat "$kubelet/.sublet-testbed" 2>/dev/null)" = "$dir" ] || return
  # The shims; each leaves a socket outside its bundle.
  for file in $(grep -lsF "$dir/containerd.sock" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}
    kill -9 "${pid%/cmdline}" 2>/dev/null
  done
  grep -rhoE '/run/containerd/s/[0-9a-f]+' "$dir/state" 2>/dev/null | sort -u | xargs -r rm -f
  # The containers: every process in the pods' control groups, then the groups.
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    groups=$(ls -d /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods 2>/dev/null)
    [ -n "$groups" ] || break
    find $groups -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | xargs -r kill -9 2>/dev/null
    find $groups -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
  done
  for mount in $(grep -oE " ($dir|$kubelet)(/[^ ]*)? " /proc/self/mounts | sort -ru); do
    umount -l "$mount" 2>/dev/null
  done
  rmdir /run/containerd/s /run/containerd 2>/dev/null
  # The mark is removed last. If the folder cannot be removed, because an agent still makes its
  # socket in it, the mark is written again: the folder stays ours, for the next try. Nothing is
  # removed through a mount that could not be unmounted.
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    find "$kubelet" -mindepth 1 -maxdepth 1 ! -name .sublet-testbed \
      -exec rm -rf --one-file-system {} + 2>/dev/null
    if [ "$(ls -A "$kubelet")" = .sublet-testbed ]; then
      rm -f "$kubelet/.sublet-testbed"
      rmdir "$kubelet" 2>/dev/null && break
      printf %s "$dir" >"$kubelet/.sublet-testbed"
    fi
    sleep 0.1
  done
}

if [ "$kind" = clean-node ]; then
  clean_node
  rm -rf --one-file-system "$dir"
  exit
fi
groups= keep=
while read -r what pid; do
  case $what in
    +) groups="$groups $pid " ;;
    -) groups=${groups%% $pid *}${groups#* $pid } ;;
    keep) keep=1 ;;
  esac
done
for pid in $groups; do kill -9 "-$pid" 2>/dev/null; done
[ "$kind" != node ] || clean_node
[ -n "$keep" ] || for try in 1 2 3 4 5; do # a dying process may still write
  rm -rf --one-file-system "$dir" 2>/dev/null && break
  sleep 0.1
done
