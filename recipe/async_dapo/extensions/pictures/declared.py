"""Pictures in prompts: the places where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(codec="codec.PictureCodec", training_worker="position_ids.PositionsTrainingWorker")
