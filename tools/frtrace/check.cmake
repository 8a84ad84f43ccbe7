# Run after frtrace is linked: a folder includes only the folders that its row names.
#
# cmake -DSRC=tools/frtrace -P check.cmake
cmake_minimum_required(VERSION 3.25)

# Lowest folder first. An analysis is input -> model -> facts -> causes -> judge -> words -> report.
# The folders that look at a running job (live, metrics, doctor, collect) are above it; no phase
# includes them.
set(folders model system input facts causes judge words report live metrics doctor collect commands)
set(model_may)
set(system_may model)
set(input_may model system)
set(facts_may model)
set(causes_may model facts)
set(judge_may model facts causes)
set(words_may model facts causes judge input)
set(report_may model facts causes words input)
set(live_may model system input words report)
set(metrics_may model report live)
set(doctor_may model system words report metrics)
set(collect_may model system input words report live)
set(commands_may model system input words report live metrics doctor collect)
include(${SRC}/../cmake/include_table.cmake)
# libfr's folders of formats, and what frtrace takes from the recorder and the sampler.
check_includes(${SRC} format fr recorder record sample watch net nccl)
