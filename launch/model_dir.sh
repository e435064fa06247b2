# Where a run keeps its MODEL_DIR. launch/supervise.sh and launch/slurm.sh source it, and have set `root`.
# shellcheck shell=bash disable=SC2154

# Whether the run of this command has its MODEL_DIR in a bucket: by an argument, the environment, or else its gin files,
# but not a file that they include.
in_bucket() {
  local word file model_dir=${MODEL_DIR:-}
  for word in "$@"; do
    case $word in *MODEL_DIR=*) model_dir=${word#*MODEL_DIR=} ;; esac
  done
  if [ -n "$model_dir" ]; then
    [[ $model_dir == *://* ]]
    return
  fi
  for word in "$@"; do
    word=${word#--gin_file=}
    case $word in *.gin) ;; *) continue ;; esac
    file=$word
    if [ ! -f "$file" ]; then file=$root/$word; fi # as limba train finds it
    if grep -qsE "^MODEL_DIR *= *['\"][^'\"]*://" "$file"; then return 0; fi
  done
  return 1
}
