"""Says what to do after the demo: where its curves are, and how to begin with hookbus.

    python .ci/after_demo.py [--checkpoint-dir DIRECTORY]

Takes the arguments of the demo. The commands that it names work in the top of the clone.
"""

import argparse

TEXT = """
The demo has trained a network, and left its checkpoints and summaries in {directory}.
Next, see why the run ended, look at its curves in a browser, or begin a run of your own:

    python3 .ci/tox.py exec -e demo -- hookbus why {directory}
    python3 .ci/tox.py exec -e demo -- tensorboard --logdir {directory}
    docs/tutorial/first-run.md
"""


def main():
    """Print the next steps for the directory in which the demo has saved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default="runs/digits")
    options, _ = parser.parse_known_args()
    print(TEXT.format(directory=options.checkpoint_dir))


if __name__ == "__main__":
    main()
