"""Names of the environment variables by which controller, training processes and their helpers know one another."""

from __future__ import annotations

#: The run that a process belongs to: whatever carries it is ended with the run.
TOKEN = "VELODROME_TOKEN"
#: The token of a process that belongs to no run and forks those that do; they have their run's in a mapping's name.
NO_TOKEN = "template"
#: What only the processes of a job have, to authenticate one another (`transport/sockets.py`). Unlike the token, it is
#: on no command line.
SECRET = "VELODROME_SECRET"
#: The job, as JSON.
JOB = "VELODROME_JOB"
#: Every process of the job, as JSON (`catalog/world.py`).
WORLD = "VELODROME_WORLD"
#: Process id of the controller, where it runs on the same host: what it uses of the processor belongs to the run.
CONTROLLER = "VELODROME_CONTROLLER"
#: Seconds between samples of a process's resources; 0 for none.
MEASURE = "VELODROME_MEASURE"
#: What a training process does instead of training (`training/actions.py`): `check:` and the number of workers that
#: strategies would have, with `:` and the mesh of a job that has one; the folder of a saved model that it evaluates; or
#: `export:` and a folder below that of a saved model, into which it writes it as ONNX.
INSTEAD = "VELODROME_INSTEAD"
CHECK = "check:"
EXPORT = "export:"
#: The folder in which a script is tried (`training/script.py`).
SCRATCH = "VELODROME_SCRATCH"
#: For the user's own code, which may want to know where it runs.
ROLE = "VELODROME_ROLE"
RANK = "VELODROME_RANK"
#: 1 to raise on an event that does not fit its model, as in the tests; otherwise the run continues with a warning.
STRICT_EVENTS = "VELODROME_STRICT_EVENTS"
#: For the user's own script: the seed of its run, which counts up over the repetitions of a race, and the run's folder.
SEED = "VELODROME_SEED"
FOLDER = "VELODROME_FOLDER"
