# make book | test | serve | results | verify | bench | picture | formulas | clean
.POSIX:

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
BIN = $(VENV)/bin
SITE = _build/html
STAMP = $(VENV)/requirements.installed
PYTEST = $(BIN)/python -m pytest

JUPYTER_BOOK_1 = import sys; from importlib.metadata import distributions; \
    found = next((book.version for book in distributions(name="jupyter-book")), "none"); \
    found.startswith("1.") or sys.exit("This book needs jupyter-book<2; installed: " + found \
    + ". Remedy: $(BIN)/python -m pip install -r requirements.txt")

help:
	@echo 'make book      create $(VENV), install the requirements, build the site into $(SITE)'
	@echo 'make test      unit tests, strict build of the whole book, site tests in a browser'
	@echo 'make serve     show the built site on http://127.0.0.1:$(PORT)/'
	@echo 'make results   run every experiment that has no fresh result (needs MNIST, takes long)'
	@echo 'make verify    check every stored result'
	@echo 'make bench     time training against the usual recipe and the bare matrix products'
	@echo 'make picture   draw the picture of the README anew from the stored result'
	@echo 'make formulas  gather the formula sheet anew from the chapters'
	@echo 'make clean     remove what was built; $(VENV) and the results stay'
	@echo 'make book PYTHON=python3.12 uses another interpreter (3.11 or newer).'

book: install
	$(BIN)/jupyter-book build .
	@echo
	@echo 'The book is ready: open $(SITE)/index.html in a browser, or run: make serve'

test: install
	$(PYTEST) -n auto --maxprocesses=4 --dist loadgroup code/tests --ignore=code/tests/site
	rm -rf $(SITE) _build/.doctrees
	$(BIN)/jupyter-book build . -W -n --keep-going
	$(PYTEST) code/tests/site

serve: install
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

results: install
	$(BIN)/highway run --all

verify: install
	$(BIN)/highway verify

bench: install
	$(BIN)/python code/benchmarks/epoch.py

picture: install
	$(BIN)/python code/picture.py

formulas: install
	$(BIN)/python code/formula_sheet.py

clean:
	rm -rf _build

# The stamp holds what was installed, so a second call compares two small files and needs no network.
install: $(BIN)/python
	@cat requirements.txt code/pyproject.toml | cmp -s - $(STAMP) || { \
	    $(BIN)/python -m pip install -r requirements.txt && \
	    cat requirements.txt code/pyproject.toml > $(STAMP); }
	@$(BIN)/python -c '$(JUPYTER_BOOK_1)'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'This book needs Python 3.11 or newer, and $(PYTHON) is not. Remedy: make book PYTHON=python3.12' >&2; \
	    exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

.PHONY: help book test serve results verify bench picture formulas clean install
