.DEFAULT_GOAL := help
.PHONY: help install run test docs pictures lint bench papers

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install:  ## install skfed with all that its development needs
	python -m pip install -c constraints.txt -e ".[docs,test]" ruff mypy pandas-stubs

run:  ## the quickstart, which downloads nothing
	python examples/getting_started/plot_quickstart.py

test:  ## tests, docstring and gallery examples, on two cores
	python -m pytest -n 2

docs:  ## this site in doc/_build/html; SPHINXOPTS="-D plot_gallery=0" skips the examples
	python -m sphinx -W --keep-going -n -q $(SPHINXOPTS) doc doc/_build/html

pictures:  ## doc/images again, from the site of make docs with all examples
	python doc/_ext/pictures.py

lint:  ## lint, format and types
	ruff check .
	ruff format --check .
	mypy

bench:  ## timings, against floors and other packages
	python -m pytest benchmarks

papers:  ## every figure and table of both papers again: hours
	python -m benchmarks.papers all
	python -m benchmarks.papers --report
