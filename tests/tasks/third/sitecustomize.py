"""Makes the third task known in every Python process that has this folder on its path, controller and workers alike."""

from brightness import Brightness

from velodrome.catalog import models
from velodrome.tasks.registry import register

models.MODELS = (*models.MODELS, models.ZooModel("brightness-linear", "one dense layer", task=Brightness.name))
register(Brightness())
