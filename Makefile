# Entry points. The work is done by the scripts of dev/; each has --help.

.DEFAULT_GOAL := help
# Where rustup puts cargo, for those who did not start a new shell since.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
.PHONY: help up down test check unit fleet e2e chart-test gen bench soak coverage clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  * needs root and Debian 12'

up: python ## run Gantry with the examples on a local cluster* or the one of KUBECONFIG; WAIT=seconds for them
	@dev/up $(if $(WAIT),--wait $(WAIT))

down: python ## end what `make up` started, and leave nothing behind
	@dev/down

test: python ## run every test*; installs and starts what that needs
	@dev/test

check: python ## formatting, lints, dependencies, generated files
	@dev/test check

unit: python ## tests that need no cluster and no database
	@dev/test unit

fleet: python ## tests of the fleet server with a real PostgreSQL
	@dev/test fleet

e2e: python ## tests against local clusters*
	@dev/test e2e

chart-test: python ## render the Helm chart, and install it with Helm 3 and 4*
	@dev/test chart

gen: ## write the generated files: CRDs, RBAC
	@cargo xtask gen

bench: python ## measure, beside a bare client in the same run*
	@dev/bench

soak: python ## the long tests*: every schedule of faults
	@dev/soak

coverage: python ## lines of the logic crates that the tests run, those against clusters* included
	@dev/test coverage

clean: ## remove what cargo built; the cache of dev/ stays
	@cargo clean

# The scripts are Python; a minimal Debian has none.
python:
	@command -v python3 >/dev/null || { echo "installing python3"; SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get -q -y update >/dev/null && $$SUDO apt-get -q -y install --no-install-recommends python3 >/dev/null; }
