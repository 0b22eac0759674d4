# `make demo` and `make test` do all of their own set-up: the environment in .venv/, everything else in build/.
# Paths are relative, so the tree may lie in a folder with spaces; `make -C TREE demo` works too.

PYTHON ?= python3
SET_UP = $(PYTHON) test/environment/bootstrap.py
RUN = .venv/bin/python

# The rooms below ROS: plain Python, fully typed.
TYPED = $(addprefix zc_perception/,pixel memory jetson negotiation machine camera npu detection frame.py __init__.py programs.py errors.py backoff.py mapping.py pictures.py kinds.py parameters.py rules.py whole_file.py frame_queue.py lookout.py shipped_files.py local_path.py log.py forking.py c_structs.py native link/shared_memory link/unixfd.py link/gstreamer.py \
	verify/evidence doctor terminal.py) $(wildcard zc_perception/link/announcement*.py zc_perception/verify/*.py zc_perception/observe/frame_*.py zc_perception/observe/[bstz]*.py zc_perception/observe/processes.py) tools/api_page.py tools/page_commands.py
# What talks to ROS and can differ on a second distribution: endpoints, executors, parameters, lifecycle, containers, messages. What is
# left out of link and nodes talks to ROS in the same way as these, and takes most of the time; the long form runs it, too.
ROS_ALIKE = link/test_camera_kills.py link/test_wire_page.py \
	nodes/test_capture% nodes/test_programs.py nodes/params/test_parameter_yaml.py \
	nodes/test_inference% nodes/test_implicit% \
	$(addprefix nodes/test_,$(addsuffix .py,graph config_files recorder diagnostics_faults overlay))
ROS_ALL = $(wildcard test/link/test_*.py test/nodes/test_*.py test/nodes/*/test_*.py)
ROS_TESTS = test/environment/test_environment.py test/examples $(if $(ZC_LONG),$(ROS_ALL),$(filter-out $(ROS_ALIKE:%=test/%),$(ROS_ALL)))
# Two workers wait for the rig's guests first, which keep half of a processor busy each; most tests of ROS wait for programs, too.
WORKERS ?= 5
PYTEST = -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# A ROS installation that the shell has sourced must not mix its libraries with those of the environment.
unexport AMENT_PREFIX_PATH LD_LIBRARY_PATH PYTHONHOME PYTHONPATH RMW_IMPLEMENTATION _ROS_WHEELS_BOOTSTRAP_COMPLETE
# Tests start hundreds of processes: without byte code each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env env-kilted fixtures demo test test-long test-kilted rig rig-full rig-rt rig-arm64 bench faults soak mutants docs lint clean

help:
	@echo 'make demo         run the demo: camera, NPU (on the CPU here) and detections in one process (DEMO_ARGS=...)'
	@echo 'make test         run the tests (TEST_ARGS=...; WORKERS=5 processes)'
	@echo 'make test-long    the same with long fuzzing, many kills and every fault'
	@echo 'make test-kilted  run the ROS tests on ROS 2 Kilted (TEST_ARGS=...)'
	@echo 'make rig          run the verification in the kernel rig (RIG_ARGS=...)'
	@echo 'make rig-full     run everything in the kernel rig: that, and all tests that boot it (TEST_ARGS=...)'
	@echo 'make rig-rt       latency on the ordinary kernel and on PREEMPT_RT, and all tests of the rig on PREEMPT_RT (RT_ARGS=..., TEST_ARGS=...)'
	@echo 'make rig-arm64    run everything below ROS on an arm64 kernel in QEMU: build/rig-arm64/result.json'
	@echo 'make bench        measure everything, beside its peers: build/bench/report.md (BENCH_ARGS=--quick)'
	@echo 'make faults       damage it on purpose: build/faults/result.json (FAULTS_ARGS=--short)'
	@echo 'make soak         four cameras, kills and changes for half an hour: build/faults/soak.csv (SOAK_ARGS="--minutes 5")'
	@echo 'make mutants      change a room at 40 places, and see which tests notice (ROOM=memory MUTANTS_ARGS="--seed 2")'
	@echo 'make docs         build the pages as a site: build/site/index.html'
	@echo 'make lint         run ruff, with the rules of ament_pep257, and mypy'
	@echo 'make env          only set up .venv/'
	@echo 'make clean        remove build/, .venv/ and .venv-kilted/'

env:
	@$(SET_UP)
	@install -m 755 bench/zc_bench .venv/bin/zc_bench

env-kilted:
	@$(SET_UP) --distro kilted

fixtures:
	@$(PYTHON) test/environment/fixtures.py

demo: env
	.venv/bin/zc_demo $(DEMO_ARGS)

test: env fixtures
	$(RUN) $(PYTEST) test $(TEST_ARGS)

test-long: env fixtures
	ZC_LONG=1 $(RUN) $(PYTEST) test $(TEST_ARGS)

test-kilted: env-kilted fixtures
	.venv-kilted/bin/python $(PYTEST) $(ROS_TESTS) $(TEST_ARGS)

rig: env
	$(RUN) test/rig/cli.py graph $(RIG_ARGS)

rig-full: rig fixtures
	ZC_RIG=required $(RUN) -m pytest test -m rig $(TEST_ARGS)

rig-rt: env fixtures
	$(RUN) test/rig/cli.py latency $(RT_ARGS)
	ZC_RIG=required ZC_RIG_KERNEL=rt-amd64 $(RUN) -m pytest test -m rig $(TEST_ARGS)

rig-arm64: env
	$(RUN) test/rig/cli.py arm64 $(RIG_ARGS)

# The peers are measured, not needed: a failure to get one makes it absent.
bench: env
	$(RUN) test/environment/extras.py bench || echo 'some peers could not be installed'
	$(RUN) -m bench.report build/bench $(BENCH_ARGS)

faults: env
	$(RUN) test/faults/run_faults.py $(FAULTS_ARGS)

soak: env
	$(RUN) test/faults/soak.py $(SOAK_ARGS)

mutants: env
	$(RUN) tools/mutants.py $(ROOM) $(MUTANTS_ARGS)

docs: env
	$(RUN) test/environment/extras.py docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m mypy --strict $(TYPED)

clean:
	rm -rf build .venv .venv-kilted
