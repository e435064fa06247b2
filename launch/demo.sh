#!/usr/bin/env bash
# From an empty machine to a tiny T5 that fills gaps in text, and one that puts spaces back, in one command.
#
#   bash launch/demo.sh
#   CORPUS='path/*.txt' STEPS=2000 MODEL_DIR=DIR bash launch/demo.sh [--gin.NAME=VALUE ...]
#
# From the environment:
#   CORPUS          text to learn from: .txt, .jsonl, .csv (column text) or .parquet, also .gz; if it is not given, the
#                   English of Python's own documentation (PSF licence). From a text of your own, only gaps are learned
#   STEPS           of each training; 800 and 500 if it is not given
#   MODEL_DIR       local folder that gets all files: runs/demo, or runs/demo-NUMBER for a text of your own
#
# --gin.NAME=VALUE is for the training on gaps alone, as in limba train gin/demo_gaps.gin; the one that puts spaces back
# has a vocabulary and lengths of its own.
#
# Each step is a command that you can type yourself; MODEL_DIR/logs has what they print besides these rows. Started
# again, it resumes, or says that it is done.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
fail() { echo "launch/demo.sh: $1" >&2; exit 2; }
for argument in "$@"; do
  case $argument in
    --gin.MODEL_DIR=* | --gin.CORPUS=*)
      name=${argument#--gin.} name=${name%%=*}
      fail "$argument names what both trainings share; write $name=… before bash launch/demo.sh instead."
      ;;
    --gin.TRAIN_STEPS=*)
      [ -z "${STEPS:-}" ] || fail "STEPS and $argument both say how many steps; give one of them."
      ;;
    --gin.*=*) ;;
    *) fail "the argument $argument is not known; give --gin.NAME=VALUE, or see --help." ;;
  esac
done

# The same name or pattern is another text in another folder. A data set of the hub, such as user/name, is the same
# everywhere, and a list or a dict of gin stays as it is typed.
case ${CORPUS:-} in
  '' | /* | \~* | *://* | [\[\(\{\'\"]*) ;;
  *) if [[ $CORPUS == *[*?[]* ]] || compgen -G "$CORPUS" >/dev/null; then CORPUS=$PWD/$CORPUS; fi ;;
esac
name=demo
if [ -n "${CORPUS:-}" ]; then name=demo-$(printf %s "$CORPUS" | cksum | cut -d ' ' -f 1); fi
directory=${MODEL_DIR:-$root/runs/$name}
case $directory in
  *://*) fail "MODEL_DIR is $directory; the demo writes to a local directory, so give one." ;;
  /*) ;;
  *) directory=$PWD/$directory ;;
esac
shown=${directory#"$PWD"/} # as it is typed here
text=$directory/logs/text.txt # the CORPUS that this demo learns from
learned='' # nothing yet, as where CORPUS was mistyped
if [ -e "$directory/vocabulary.model" ] || [ -n "$(ls -A "$directory/checkpoints" 2>/dev/null)" ]; then learned=yes; fi
if [ -f "$text" ] && [ -n "$learned" ] && [ "$(cat "$text")" != "${CORPUS:-}" ]; then
  was=$(cat "$text")
  fail "$shown learned from ${was:-"Python's documentation"}, and not from ${CORPUS:-"Python's documentation"}; \
give another folder by MODEL_DIR, or that text again."
fi
bash "$root/launch/setup.sh"
export LIMBA_ALONE=1 # one process, also in a job that has several
export LIMBA_NEXT=no # the end of this script says what to type next
export MODEL_DIR=$directory
python=$root/.venv/bin/python
corpus=${CORPUS:-$directory/corpus.jsonl}
done=$directory/logs/demo.txt # what was asked for when the demo was done
asked="${STEPS:-} $*"

limba() { "$python" -m limba "$@"; }
train() { bash "$root/launch/supervise.sh" "$python" -m limba train "$@"; }
say_next() {
  local activate=$root/.venv/bin/activate
  local run # quoted where a shell needs it
  run=$(printf %q "$shown")
  echo "Next:  . $(printf %q "${activate#"$PWD"/}")    # then the command limba is there"
  echo "  limba generate $run --prompt='The ___ returns a list.'"
  if [ -d "$directory/spaces" ]; then echo "  limba generate $run/spaces --prompt='returnsalistofnames'"; fi
  echo "  limba play $run    # a page to try it; limba report: how it learned"
  echo "  limba new my --corpus='path/*.txt'    # a run for your own text"
}

if [ -f "$done" ] && [ -f "$text" ] && [ "$(cat "$done")" = "$asked" ]; then
  echo "The demo is done: $shown"
  say_next
  exit 0
fi
mkdir -p "$directory/logs"
printf %s "${CORPUS:-}" >"$text"
if [ -z "${CORPUS:-}" ] && [ ! -f "$corpus" ]; then # tasks/ of the clone, and not of the folder that this is called in
  PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} "$python" -P -m tasks.demo "$corpus" >"$directory/logs/corpus.log"
fi

echo "A tiny T5 learns to fill gaps: [its word, not the right one] or [word ✓]."
steps=()
if [ -n "${STEPS:-}" ]; then steps=("--gin.TRAIN_STEPS=$STEPS"); fi
train gin/demo_gaps.gin "--gin.MODEL_DIR=$directory" "--gin.CORPUS=$corpus" \
  "--gin.VOCABULARY=$directory/vocabulary.model" ${steps[@]+"${steps[@]}"} "$@"
limba evaluate "$shown"
limba convert "$shown" >"$directory/logs/convert.log"
echo "For transformers, with equal logits: $(tail -n 1 "$directory/logs/convert.log")"
if [ -z "${CORPUS:-}" ]; then
  echo "Another one learns to put spaces back: returnsalistofnames."
  train gin/demo_spaces.gin "--gin.MODEL_DIR=$directory/spaces" "--gin.CORPUS=$corpus" ${steps[@]+"${steps[@]}"}
fi
printf %s "$asked" >"$done"
say_next
